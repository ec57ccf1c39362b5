"""A request's sampling on the host: its columns, its edits, what it needs; bad ids never get in."""

import numpy as np
import pytest

from jaxinfer.sampling_params import SamplingParams
from jaxinfer.serving.constraints.constraint import TokenEdits
from jaxinfer.serving.sampling.layout import ALWAYS, EDIT_WIDTH, Column, LogitEdits, Need
from jaxinfer.serving.slots.row_sampling import RowSampling, prepare_row

VOCAB = 100
FLOATS = (Column.TEMPERATURE, Column.TOP_P, Column.MIN_P)


def row(params: SamplingParams, **extra) -> RowSampling:
    arguments = {"seed": 0, "vocab_size": VOCAB, "prompt_token_ids": [1, 2, 3]} | extra
    return prepare_row(params, **arguments)


def written(sampling: RowSampling) -> LogitEdits:
    edits = LogitEdits(
        np.full(EDIT_WIDTH, -1, np.int32),
        np.zeros(EDIT_WIDTH, np.float32),
        np.zeros(EDIT_WIDTH, np.int32),
        np.full(4, -1, np.int32),
    )
    sampling.edits.write(edits, TokenEdits())
    return edits


def bans(sampling: RowSampling, output: list[int]) -> set[int]:
    """Tokens that may not come after these."""
    edits = written(sampling)
    applies = np.isneginf(edits.values) & (3 + len(output) < edits.until)
    return set(edits.ids[applies].tolist())


def test_parameters_land_in_their_columns() -> None:
    params = SamplingParams(temperature=0.5, top_k=7, top_p=0.9, min_p=0.1)
    scalars = row(params, seed=(5 << 32) + 6).scalars
    assert scalars.dtype == np.int32
    assert np.allclose(scalars.view(np.float32)[list(FLOATS)], [0.5, 0.9, 0.1])
    integers = [Column.TOP_K, Column.SEED_LOW, Column.SEED_HIGH, Column.PROMPT_LENGTH]
    assert scalars[integers].tolist() == [7, 6, 5, 3]


@pytest.mark.parametrize("seed", [0, -1, 2**63 - 1, -(2**63), 2**32])
def test_every_64_bit_seed_is_kept_whole(seed: int) -> None:
    scalars = row(SamplingParams(), seed=seed).scalars
    low, high = scalars[[Column.SEED_LOW, Column.SEED_HIGH]].astype(np.uint32).tolist()
    assert (high << 32) + low == seed % 2**64


def test_greedy_rows_carry_no_truncation() -> None:
    scalars = row(SamplingParams(temperature=1e-6, top_k=7, top_p=0.9, min_p=0.1)).scalars
    assert scalars.view(np.float32)[list(FLOATS)].tolist() == [0.0, 1.0, 0.0]
    assert scalars[Column.TOP_K] == 0


@pytest.mark.parametrize(
    ("fields", "needs"),
    [
        ({}, 0),
        ({"logprobs": 5}, 0),
        ({"logit_bias": {1: 1.0}}, Need.EDITS),
        ({"allowed_token_ids": [1]}, Need.EDITS),
        ({"min_tokens": 2, "stop_token_ids": [7]}, Need.EDITS),
        ({"min_tokens": 2}, 0),  # and nothing to ban
        ({"presence_penalty": 1.0}, Need.HISTORY),
        ({"repetition_penalty": 1.1, "logit_bias": {1: 1.0}}, Need.EDITS | Need.HISTORY),
    ],
    ids=str,
)
def test_a_row_needs_of_its_slot_what_its_parameters_say(fields: dict, needs: int) -> None:
    sampling = row(SamplingParams(**fields))
    assert sampling.scalars[Column.NEEDS] == needs
    assert (sampling.edits is not None) == bool(needs & Need.EDITS)


def test_reached_min_tokens_make_a_row_cheap_again() -> None:
    params = SamplingParams(min_tokens=2)
    assert [row(params).mode(n) for n in (0, 1, 2)] == ["full", "full", "temperature"]
    assert row(params.clone(logprobs=1)).mode(2) == "full"


def test_min_tokens_bans_end_of_sequence_and_stop_tokens_until_reached() -> None:
    params = SamplingParams(min_tokens=2, stop_token_ids=[7], ignore_eos=True)
    for output, banned in (([], {7, 9}), ([5], {7, 9}), ([5, 6], set())):
        assert bans(row(params, eos_token_ids=[9]), output) == banned


def test_bad_words_of_one_token_are_banned_for_good() -> None:
    words = [[10], [11, 12], [10]]
    assert bans(row(SamplingParams(bad_words=["x"]), bad_words_token_ids=words), []) == {10}


def test_biases_and_bans_share_a_row() -> None:
    params = SamplingParams(logit_bias={4: 1.5, 5: -2.0}, min_tokens=1)
    edits = written(row(params, eos_token_ids=[6]))
    assert edits.ids[:4].tolist() == [4, 5, 6, -1]
    assert edits.values[:3].tolist() == [1.5, -2.0, -np.inf]
    assert edits.until[:3].tolist() == [ALWAYS, ALWAYS, 4]
    assert (edits.allowed == -1).all()


def test_allowed_tokens_are_bits() -> None:
    words = written(row(SamplingParams(allowed_token_ids=[0, 31, 32, 99]))).allowed.view(np.uint32)
    assert [t for t in range(VOCAB) if words[t // 32] >> np.uint32(t % 32) & 1] == [0, 31, 32, 99]


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


def test_a_grammar_s_mask_narrows_the_allowed_tokens():
    grammar = {"structured_outputs": {"regex": "a"}}
    for allowed, expected in [(None, [0b1011, 7, 9]), ([1, 2, 34], [0b10, 0b100, 9])]:
        bits = np.array([0b1011, 7, 9], np.int32)  # a word more than the vocabulary has
        params = SamplingParams(allowed_token_ids=allowed, **grammar)
        row = prepare_row(params, seed=0, vocab_size=64, prompt_token_ids=[1])
        assert row.first_mode == ("temperature" if allowed is None else "full")
        assert row.scalars[Column.NEEDS] == Need.EDITS
        row.edits.restrict(bits)
        assert bits.tolist() == expected
