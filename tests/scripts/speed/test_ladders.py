"""Smaller ladders of sizes save programs, and every step still finds the ones that it needs."""

import pytest

from jaxinfer.serving.programs.buckets import Buckets
from jaxinfer.serving.programs.choose_buckets import choose_buckets
from jaxinfer.serving.programs.layout import PrefillShape
from jaxinfer.serving.programs.program_set import all_programs
from scripts.speed.ladders import (
    LADDERS,
    Size,
    StepBatch,
    num_programs,
    paddings,
    program_name,
    programs_of,
    removable,
    step_name,
    without,
)

_ROWS = (8, 64, 128, 192, 256)
_FEW = tuple((tokens, 8) for tokens in (128, 256, 512, 1024, 2048, 4096))
_MANY = (256, 1024, 4096, 8192, 16_384)
_MANY_OF_LARGE = (256, 512, 640, 1024, 1280, 2048, 2560, 4096, 8192, 16_384)


def _buckets(*, large: bool = False):
    """The sizes that ladders are made from, of small weights or large ones."""
    prefill = {*_FEW, *((tokens, 256) for tokens in (_MANY_OF_LARGE if large else _MANY))}
    return Buckets(
        prefill=tuple(sorted(prefill)),
        scored=((4096, 256), (8192, 256), (16_384, 256)),
        rows=_ROWS,
        sampled_rows=(2, 8, 16, 32),
        multi_step_rows=() if large else (2, 8),
        num_steps=1 if large else 8,
        full_rows=(8, 64, 256),
        mixed_rows=_ROWS[1:],
        widths=(256, 2560),
        wide_rows=(64, 256),
        sharing=(64, 256),
        rows_in_item=32,
    )


def _chosen(platform):
    """Buckets of few sizes, as an engine would choose them."""
    return choose_buckets(
        max_num_seqs=70,
        max_num_batched_tokens=512,
        max_model_len=40_960,
        block_size=16,
        num_decode_steps=8,
        rows_in_item=32,
        platform=platform,
    )


@pytest.mark.parametrize(
    ("size", "saved"),
    [
        (Size("rows", 192), 4),
        (Size("sampled_rows", 2), 4),
        (Size("sampled_rows", 16), 2),
        (Size("mixed_rows", 128), 1),
        (Size("prefill", (4096, 8)), 1),
        (Size("scored", (8192, 256)), 2),
    ],
    ids=str,
)
def test_a_size_that_is_removed_saves_its_programs(size, saved):
    buckets = _buckets()
    assert num_programs(buckets) - num_programs(without(buckets, [size])) == saved


@pytest.mark.parametrize(("large", "counts"), [(False, (61, 51, 46, 37)), (True, (62, 52, 47, 37))])
def test_each_ladder_has_fewer_programs_than_the_one_before(large, counts):
    buckets = _buckets(large=large)
    every = set(all_programs(buckets, swaps=False))
    ladders = [buckets, *(without(buckets, sizes) for sizes in LADDERS.values())]
    assert tuple(map(num_programs, ladders)) == counts
    assert all(set(all_programs(each, swaps=False)) <= every for each in ladders)


@pytest.mark.parametrize("size", [Size("rows", 256), Size("sampled_rows", 8)], ids=str)
def test_a_size_that_some_steps_need_has_to_stay(size):
    assert size not in removable(_buckets())
    with pytest.raises(ValueError, match=f"no other size than {size},"):
        without(_buckets(), [size])


def test_steps_are_padded_to_the_next_larger_size():
    buckets = _buckets()
    found = paddings(buckets, without(buckets, [Size("rows", 192)]))
    assert {(step_name(each.before), step_name(each.after)) for each in found} == {
        (
            f"decode 192 of 256 blocks, sample 192 ({mode})",
            f"decode 256 of 256 blocks, sample 256 ({mode})",
        )
        for mode in ("temperature", "truncate", "mixed")
    }
    assert {each.batch.rows for each in found} == {129}


def test_a_step_without_its_own_size_of_sampling_runs_two_programs():
    buckets = _buckets()
    fewer = without(buckets, [Size("sampled_rows", 32)])
    names = [step_name(programs_of(each, StepBatch(17))) for each in (buckets, fewer)]
    assert names == [
        "decode and sample 32 (temperature)",
        "decode 64 of 256 blocks, sample 64 (temperature)",
    ]


def test_a_prompt_that_is_scored_runs_three_programs():
    programs = programs_of(_buckets(), StepBatch(3, tokens=700, scored=True))
    assert programs[0] == PrefillShape(4096, 256, 2560, all_tokens=True)
    assert step_name(programs) == "prefill 4096x256 all, sample 256 (temperature), score 4096"


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_the_steps_of_any_smaller_ladder_are_programs_of_the_engine(platform):
    buckets = _chosen(platform)
    every = set(all_programs(buckets, swaps=False))
    assert removable(buckets)
    for size in removable(buckets):
        fewer = without(buckets, [size])
        own, found = set(all_programs(fewer, swaps=False)), paddings(buckets, fewer)
        assert found, size
        for padding in found:
            assert set(padding.after) <= own, size
            assert {*padding.before, *padding.after} <= every, size


def test_no_two_programs_have_one_name():
    keys = all_programs(_buckets(), swaps=True)
    assert len({program_name(key) for key in keys}) == len(keys)
