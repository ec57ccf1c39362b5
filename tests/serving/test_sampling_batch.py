"""Packing: parameters land in their columns, bans follow the output, bad ids never get in."""

import numpy as np
import pytest

from jaxinfer.sampling_params import SamplingParams
from jaxinfer.serving.sampling.layout import EDIT_WIDTH, Column
from jaxinfer.serving.sampling_batch import (
    BatchRow,
    batch_mode,
    history_needed,
    pack,
    prepare_row,
)

VOCAB = 100
FLOATS = (Column.TEMPERATURE, Column.TOP_P, Column.MIN_P)


def row(params: SamplingParams, output: list[int] | None = None, **extra) -> BatchRow:
    arguments = {"seed": 0, "vocab_size": VOCAB, "prompt_token_ids": [1, 2, 3]} | extra
    output = output or []
    return BatchRow(prepare_row(params, **arguments), 3 + len(output), output)


def pack_one(packed_row: BatchRow, mode: str = "full", **sizes):
    arguments = {"batch_size": 2, "vocab_size": VOCAB, "history_width": 8} | sizes
    return pack([packed_row], mode, **arguments)


def bans(arrays) -> set[int]:
    return set(arrays.edit_ids[0][np.isneginf(arrays.edit_values[0])].tolist())


def test_parameters_land_in_their_columns() -> None:
    params = SamplingParams(temperature=0.5, top_k=7, top_p=0.9, min_p=0.1)
    scalars = pack_one(row(params, seed=(5 << 32) + 6), "truncate").scalars
    assert scalars.dtype == np.int32
    values = scalars[0].view(np.float32)[list(FLOATS)]
    assert np.allclose(values, [0.5, 0.9, 0.1])
    integers = [Column.TOP_K, Column.SEED_LOW, Column.SEED_HIGH, Column.POSITION]
    assert scalars[0, integers].tolist() == [7, 6, 5, 3]


@pytest.mark.parametrize("seed", [0, -1, 2**63 - 1, -(2**63), 2**32])
def test_every_64_bit_seed_is_kept_whole(seed: int) -> None:
    scalars = pack_one(row(SamplingParams(), seed=seed), "temperature").scalars
    low, high = scalars[0, [Column.SEED_LOW, Column.SEED_HIGH]].astype(np.uint32).tolist()
    assert (high << 32) + low == seed % 2**64


def test_greedy_rows_carry_no_truncation() -> None:
    params = SamplingParams(temperature=1e-6, top_k=7, top_p=0.9, min_p=0.1)
    scalars = pack_one(row(params), "truncate").scalars
    assert scalars[0].view(np.float32)[list(FLOATS)].tolist() == [0.0, 1.0, 0.0]
    assert scalars[0, Column.TOP_K] == 0


def test_padding_rows_are_greedy_and_neutral() -> None:
    arrays = pack([], "full", batch_size=2, vocab_size=VOCAB, history_width=4)
    assert (arrays.scalars.view(np.float32)[:, Column.TEMPERATURE] == 0).all()
    assert (arrays.scalars[:, Column.HISTORY_LENGTH] == 0).all()
    assert (arrays.edit_ids == -1).all()
    assert (arrays.allowed == -1).all()


def test_cheaper_modes_upload_scalars_only() -> None:
    arrays = pack_one(row(SamplingParams()), "temperature")
    assert arrays[1:] == (None,) * 4


def test_batch_mode_is_the_dearest_of_its_rows() -> None:
    greedy, plain = row(SamplingParams(temperature=0)), row(SamplingParams())
    truncated, full = row(SamplingParams(top_k=1)), row(SamplingParams(logprobs=1))
    assert batch_mode([]) == batch_mode([greedy]) == "greedy"
    assert batch_mode([greedy, plain]) == "temperature"
    assert batch_mode([truncated, plain, greedy]) == "truncate"
    assert batch_mode([plain, full, greedy]) == "full"


def test_reached_min_tokens_make_a_row_cheap_again() -> None:
    params = SamplingParams(min_tokens=2)
    assert batch_mode([row(params, [5])]) == "full"
    assert batch_mode([row(params, [5, 6])]) == "temperature"
    assert batch_mode([row(params.clone(logprobs=1), [5, 6])]) == "full"


def test_min_tokens_bans_end_of_sequence_and_stop_tokens_until_reached() -> None:
    params = SamplingParams(min_tokens=2, stop_token_ids=[7], ignore_eos=True)
    for output, banned in (([], {7, 9}), ([5], {7, 9}), ([5, 6], set())):
        assert bans(pack_one(row(params, output, eos_token_ids=[9]))) == banned


@pytest.mark.parametrize(
    ("output", "banned"),
    [
        ([], {10}),
        ([11], {10, 12}),
        ([11, 12], {10, 13}),
        ([12, 11, 12], {10, 13}),
        ([11, 5], {10}),
        ([5, 12], {10}),
    ],
)
def test_bad_words_ban_their_last_token_after_their_first_ones(
    output: list[int], banned: set[int]
) -> None:
    words = [[10], [11, 12], [11, 12, 13], [11, 12, 13]]
    params = SamplingParams(bad_words=["x"])
    assert bans(pack_one(row(params, output, bad_words_token_ids=words))) == banned


def test_bad_words_do_not_look_into_the_prompt() -> None:
    params = SamplingParams(bad_words=["x"])
    arrays = pack_one(row(params, bad_words_token_ids=[[3, 4]]))
    assert bans(arrays) == set()


def test_biases_and_bans_share_a_row() -> None:
    params = SamplingParams(logit_bias={4: 1.5, 5: -2.0}, min_tokens=1)
    arrays = pack_one(row(params, eos_token_ids=[6]))
    assert arrays.edit_ids[0, :4].tolist() == [4, 5, 6, -1]
    assert arrays.edit_values[0, :3].tolist() == [1.5, -2.0, -np.inf]


def test_allowed_tokens_are_bits() -> None:
    arrays = pack_one(row(SamplingParams(allowed_token_ids=[0, 31, 32, 99])))
    words = arrays.allowed[0].view(np.uint32)
    assert arrays.allowed.shape == (2, 4)
    assert [t for t in range(VOCAB) if words[t // 32] >> np.uint32(t % 32) & 1] == [0, 31, 32, 99]
    assert (arrays.allowed[1] == -1).all()


def test_history_grows_with_the_output() -> None:
    packed_row = row(SamplingParams(repetition_penalty=1.1))
    for output in ([], [4], [4, 5], [4, 5, 6, 7, 8], [4, 5, 6, 7, 8]):
        arrays = pack_one(packed_row._replace(output_token_ids=output, position=3 + len(output)))
        length = arrays.scalars[0, Column.HISTORY_LENGTH]
        assert arrays.history[0, :length].tolist() == [1, 2, 3, *output]
        assert arrays.scalars[0, Column.PROMPT_LENGTH] == 3


def test_history_is_kept_only_where_penalties_need_it() -> None:
    plain = row(SamplingParams(logprobs=1), [4, 5])
    penalised = row(SamplingParams(presence_penalty=1.0), [4, 5])
    assert history_needed([plain]) == 0
    assert history_needed([plain, penalised]) == 5
    assert pack_one(plain, history_width=0).scalars[0, Column.HISTORY_LENGTH] == 0
    with pytest.raises(ValueError, match=r"history_width 4.*5"):
        pack_one(penalised, history_width=4)


def test_too_many_rows_are_an_error() -> None:
    with pytest.raises(ValueError, match=r"3 rows.*2"):
        pack([row(SamplingParams())] * 3, "greedy", batch_size=2, vocab_size=VOCAB)


@pytest.mark.parametrize(
    ("params", "extra", "name"),
    [
        (SamplingParams(logit_bias={100: 1.0}), {}, "logit_bias"),
        (SamplingParams(allowed_token_ids=[100]), {}, "allowed_token_ids"),
        (SamplingParams(stop_token_ids=[100]), {}, "stop_token_ids"),
        (SamplingParams(), {"eos_token_ids": [100]}, "eos_token_ids"),
        (SamplingParams(), {"prompt_token_ids": [-1]}, "prompt_token_ids"),
        (SamplingParams(), {"bad_words_token_ids": [[5, 100]]}, "bad_words_token_ids"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_ids_outside_the_vocabulary_never_get_in(params, extra: dict, name: str) -> None:
    with pytest.raises(ValueError, match=name):
        row(params, **extra)


def test_more_edits_than_a_row_has_room_for_are_an_error() -> None:
    words = [[i // VOCAB, i % VOCAB] for i in range(EDIT_WIDTH + 1)]
    with pytest.raises(ValueError, match=f"{EDIT_WIDTH + 1} logit edits"):
        row(SamplingParams(bad_words=["x"]), bad_words_token_ids=words)
    assert row(SamplingParams(bad_words=["x"]), bad_words_token_ids=words[1:])
