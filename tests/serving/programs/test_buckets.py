from typing import get_args

import pytest

from jaxinfer.serving.programs.buckets import MULTI_STEP_ROWS
from jaxinfer.serving.programs.choose_buckets import choose_buckets, for_pooling
from jaxinfer.serving.programs.kinds.speculative_decode import (
    SpeculativeDecodeKind,
    draft_sizes,
    speculative_key,
)
from jaxinfer.serving.programs.layout import DecodeShape, PrefillShape
from jaxinfer.serving.programs.speculative.lookup import LookupDrafter
from jaxinfer.serving.sampling.layout import MODES, SamplerMode, num_special_rows


def _choose(platform="gpu", **changes):
    sizes = {
        "max_num_seqs": 256,
        "max_num_batched_tokens": 8192,
        "max_model_len": 40960,
        "block_size": 16,
    }
    return choose_buckets(**(sizes | changes), platform=platform)


@pytest.mark.parametrize("platform", ["cpu", "gpu"], ids=["on_cpu", "on_gpu"])
@pytest.mark.parametrize("max_num_seqs", [1, 2, 3, 12, 100, 256, 1000])
def test_every_step_fits_a_bucket(platform, max_num_seqs):
    buckets = _choose(platform, max_num_seqs=max_num_seqs, max_num_batched_tokens=2000)
    for rows in range(1, max_num_seqs + 1):
        assert buckets.decode_shape(rows, 2560).rows >= rows
        for tokens in (rows, 2000):
            shape = buckets.prefill_shape(tokens, rows)
            assert shape.tokens >= tokens
            assert shape.rows >= rows
            assert shape in buckets.prefill_shapes()
            for mode in MODES:
                assert shape.rows in buckets.sampler_rows(mode)


@pytest.mark.parametrize("platform", ["cpu", "gpu"], ids=["on_cpu", "on_gpu"])
def test_no_program_has_a_product_with_one_row(platform):
    buckets = _choose(platform, max_num_seqs=1, max_num_batched_tokens=1)
    assert min(buckets.sampler_rows("temperature")) >= 2
    assert min(buckets.sampled_rows) >= 2
    assert min(tokens for tokens, _ in buckets.prefill) >= 2


def test_a_gpu_has_close_sizes_of_decode_steps():
    assert _choose().rows == (8, 64, 128, 192, 256)
    assert _choose(max_num_seqs=1000).rows == (8, 64, 128, 192, 256, 384, 512, 1000)


def test_the_largest_gpu_step_takes_as_many_rows_as_there_are():
    buckets = _choose(max_num_batched_tokens=16_384)
    for size in (8192, 16_384):
        assert [rows for tokens, rows in buckets.prefill if tokens == size] == [256]
    assert buckets.prefill_shape(8192, 16).tokens == 8192
    assert [rows for tokens, rows in buckets.prefill if tokens == 4096] == [8, 256]


@pytest.mark.parametrize("weight_bytes", [1 << 30, 16 << 30])
def test_an_engine_that_only_reads_has_few_sizes_on_a_gpu(weight_bytes):
    buckets = for_pooling(_choose(max_num_batched_tokens=16_384, weight_bytes=weight_bytes), "gpu")
    large = [(size, 256) for size in (1024, 2048, 4096, 8192, 16_384)]
    assert buckets.prefill == ((256, 8), (512, 8), *large)
    assert buckets.prefill_shape(20, 9) == PrefillShape(1024, 256, 2560)
    assert len(buckets.prefill_shapes()) == 7


@pytest.mark.parametrize("platform", ["cpu", "gpu"], ids=["on_cpu", "on_gpu"])
@pytest.mark.parametrize("most_tokens", [1, 100, 256, 300, 2000])
@pytest.mark.parametrize("max_num_seqs", [1, 3, 256, 1000])
def test_every_step_that_only_reads_fits_a_bucket(platform, max_num_seqs, most_tokens):
    most_tokens = max(most_tokens, max_num_seqs)
    sizes = {"max_num_seqs": max_num_seqs, "max_num_batched_tokens": most_tokens}
    buckets = for_pooling(_choose(platform, **sizes), platform)
    for rows in range(1, max_num_seqs + 1):
        for tokens in (rows, most_tokens):
            shape = buckets.prefill_shape(tokens, rows)
            assert shape.tokens >= tokens
            assert shape.rows >= rows
            assert shape in buckets.prefill_shapes()


def test_steps_of_large_weights_are_padded_less():
    small, large = (_choose(weight_bytes=size) for size in (1 << 30, 16 << 30))
    assert small.prefill_shape(530, 20) == PrefillShape(1024, 256, 2560)
    assert large.prefill_shape(530, 20) == PrefillShape(640, 256, 2560)
    assert large.prefill_shape(530, 2).tokens == 640
    assert large.prefill_shape(1060, 20).tokens == 1280
    assert large.prefill_shape(400, 20).tokens == 512
    assert small.prefill[-1] == large.prefill[-1]
    assert len(large.prefill) - len(small.prefill) <= 6
    assert _choose(weight_bytes=16 << 30, max_num_batched_tokens=1024).prefill[-1] == (1024, 256)


def test_short_contexts_of_many_rows_take_narrow_tables_on_a_gpu():
    buckets = _choose()
    assert buckets.widths == (256, 2560)
    assert buckets.decode_shape(33, 256) == DecodeShape(64, 256)
    assert buckets.decode_shape(33, 257) == DecodeShape(64, 2560)
    assert buckets.decode_shape(8, 1) == DecodeShape(8, 2560)
    assert buckets.prefill_shape(100, 3) == PrefillShape(128, 8, 2560)
    assert _choose(max_model_len=4096).widths == (256,)


def test_many_rows_of_long_contexts_are_padded_to_one_of_few_sizes():
    buckets = _choose()
    assert buckets.decode_shape(65, 256) == DecodeShape(128, 256)
    assert buckets.decode_shape(65, 257) == DecodeShape(256, 2560)
    assert buckets.decode_shape(50, 257) == DecodeShape(64, 2560)


@pytest.mark.parametrize("max_num_seqs", [1, 30, 40, 64, 100, 256, 300, 1000])
@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_every_decode_finds_its_programs_at_both_widths(platform, max_num_seqs):
    buckets = _choose(platform, max_num_seqs=max_num_seqs)
    for rows in range(1, max_num_seqs + 1):
        for width in (1, 256, 257, buckets.widths[-1]):
            for mode in MODES:
                shape = buckets.decode_shape(rows, width, mode=mode)
                assert shape in buckets.decode_shapes()
                assert shape.rows in buckets.sampler_rows(mode)
                assert (shape.rows >= rows, shape.width >= width) == (True, True)
                if buckets.samples_at_once(rows, mode):
                    shape = buckets.sampled_decode_shape(rows, width)
                    assert shape in buckets.sampled_decode_shapes()
                    assert (shape.rows >= rows, shape.width >= width) == (True, True)


def test_on_a_gpu_short_steps_sample_in_the_same_program():
    buckets = _choose()
    assert buckets.sampled_rows == (2, 8, 16, 32)
    assert [buckets.sampled_decode_shape(rows, 300).rows for rows in (1, 3, 9, 32)] == [
        2,
        8,
        16,
        32,
    ]
    assert buckets.samples_at_once(32, "temperature")
    assert not buckets.samples_at_once(33, "temperature")
    assert {shape.width for shape in buckets.sampled_decode_shapes()} == {2560}


@pytest.mark.parametrize(("most", "sizes"), [(1, (2,)), (8, (2, 8)), (20, (2, 8, 16, 20))])
def test_sizes_of_steps_that_sample_end_with_the_most_rows_there_are(most, sizes):
    assert _choose(max_num_seqs=most).sampled_rows == sizes


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_only_modes_without_slots_sample_in_the_same_program(platform):
    buckets = _choose(platform)
    at_once = {mode for mode in get_args(SamplerMode) if buckets.samples_at_once(2, mode)}
    assert at_once == {"temperature", "truncate"}


def test_a_second_width_costs_few_programs():
    one, two = (_choose(max_model_len=length) for length in (4096, 40_960))
    assert len(two.widths) == 1 + len(one.widths) == 2
    assert len(two.decode_shapes()) - len(one.decode_shapes()) <= 2
    assert len(two.sampled_decode_shapes()) == len(one.sampled_decode_shapes())


@pytest.mark.parametrize("block_size", [8, 16, 64, 128, 256])
def test_a_table_on_a_gpu_holds_whole_tiles_of_keys(block_size):
    for width in _choose(block_size=block_size, max_model_len=5000).widths:
        assert width * block_size % 128 == 0


def test_mode_full_takes_few_of_the_decode_buckets():
    buckets = _choose()
    assert [buckets.decode_shape(n, 256, mode="full").rows for n in (3, 9, 65)] == [8, 64, 256]
    assert buckets.sampler_rows("full") == [8, 64, 256]


@pytest.mark.parametrize(
    ("rows", "special", "mode"),
    [
        (32, 1, "full"),
        (33, 1, "mixed"),
        (64, 8, "mixed"),
        (64, 9, "full"),
        (65, 16, "mixed"),
        (65, 17, "full"),
        (256, 32, "mixed"),
        (256, 33, "full"),
    ],
)
@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_few_rows_of_many_that_need_everything_are_sampled_apart(platform, rows, special, mode):
    buckets = _choose(platform)
    assert buckets.sampler_mode(rows, special, "full", truncates=False) == mode
    assert buckets.sampler_mode(rows, special, "full", truncates=True) == "full"
    assert buckets.sampler_mode(rows, 0, "truncate", truncates=True) == "truncate"
    shape = buckets.decode_shape(rows, 300, mode=mode)
    assert shape.rows in buckets.sampler_rows(mode)
    assert mode != "mixed" or special <= num_special_rows(shape.rows)


@pytest.mark.parametrize("max_num_seqs", [63, 64, 100, 256, 300, 2000])
def test_steps_that_read_shared_keys_once_have_samplers_in_every_mode(max_num_seqs):
    buckets = _choose(max_num_seqs=max_num_seqs, rows_in_item=32)
    for rows in range(1, max_num_seqs + 1):
        for mode in get_args(SamplerMode):
            shape = buckets.sharing_shape(rows, mode=mode)
            if max_num_seqs < 64:
                assert shape is None
            else:
                assert shape in buckets.decode_shapes()
                assert shape.rows >= rows
                assert shape.rows in buckets.sampler_rows(mode)


def test_without_kernels_for_them_no_step_looks_for_shared_keys():
    assert _choose().sharing_shape(64) is None
    assert not any(shape.work_items for shape in _choose().decode_shapes())


def test_a_cpu_compiles_few_programs():
    buckets = _choose("cpu", max_num_batched_tokens=2048, max_model_len=4096)
    assert len(buckets.prefill_shapes()) + len(buckets.decode_shapes()) <= 16


def test_cpu_decode_buckets_are_dense_where_padding_costs_most():
    buckets = _choose("cpu")
    assert buckets.rows == (4, 16, 32, 48, 64, 128, 256)
    assert buckets.sampled_rows == (4, 16, 24, 32, 40, 48, 56, 64, 128, 256)
    assert buckets.decode_shape(33, 1).rows == 48
    assert buckets.sampled_decode_shape(33, 1).rows == 40


def test_a_step_beyond_the_largest_bucket_is_an_error():
    buckets = _choose()
    with pytest.raises(ValueError, match="8193 tokens in 1 rows"):
        buckets.prefill_shape(8193, 1)
    with pytest.raises(ValueError, match="257 exceeds the largest bucket, 256"):
        buckets.decode_shape(257, 1)
    with pytest.raises(ValueError, match="33 exceeds the largest bucket, 32"):
        buckets.sampled_decode_shape(33, 1)


@pytest.mark.parametrize("num_decode_steps", [1, 8])
@pytest.mark.parametrize("max_num_seqs", [1, 6, 12, 256])
def test_launches_with_drafts_have_as_many_steps_as_those_without(num_decode_steps, max_num_seqs):
    buckets = _choose(
        max_num_seqs=max_num_seqs,
        num_decode_steps=num_decode_steps,
        drafter=LookupDrafter(7, 5, 5),
    )
    sizes = draft_sizes(buckets)
    assert [size.rows for size in sizes] == sorted({size.rows for size in sizes})
    for rows in range(1, min(max_num_seqs, 16) + 1):
        size = next(size for size in sizes if size.rows >= rows)
        assert size.num_steps == (num_decode_steps if rows <= MULTI_STEP_ROWS else 1)
        key = speculative_key(buckets, rows, "temperature", size.num_steps)
        assert key.drafter.num_tokens == size.num_drafts
        assert key in SpeculativeDecodeKind().keys(buckets, swaps=False)
