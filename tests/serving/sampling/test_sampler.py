"""The sampler's promises: modes agree, rows are independent, seeds repeat, broken rows are told."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxinfer.sampling_params import FULL, SamplingParams
from jaxinfer.serving.requests.result import NO_TOKEN, NOT_FINITE, OK
from jaxinfer.serving.sampling.layout import MODES
from jaxinfer.serving.sampling.sampler import sample
from tests.serving.sampling.sampling_reference import (
    make_rows,
    pack,
    probabilities,
    processed_logits,
    run,
)

ROWS, VOCAB = 8, 101
PROMPT, OUTPUT = [1, 2, 3], [4, 4, 5, 1]

MIXED = [
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.7),
    SamplingParams(temperature=1.3, min_p=0.02),
    SamplingParams(top_k=5),
    SamplingParams(top_p=0.6, temperature=2.0),
    SamplingParams(repetition_penalty=1.4, frequency_penalty=0.3, temperature=0.0),
    SamplingParams(logit_bias={7: 5.0}, allowed_token_ids=list(range(5, 60)), logprobs=3),
    SamplingParams(temperature=0.0, logprobs=0, presence_penalty=1.0),
]


def random_logits(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(ROWS, VOCAB)).astype(np.float32) * 3


def test_greedy_takes_the_lowest_of_the_largest_in_every_mode() -> None:
    logits = np.round(random_logits())  # many ties
    for mode in MODES:
        output = run(logits, [SamplingParams(temperature=0.0)] * ROWS, mode=mode)
        assert np.array_equal(output.tokens, logits.argmax(1))
        assert output.tokens.dtype == np.int32
        assert (output.status == OK).all()


def test_each_mode_gives_only_what_it_promises() -> None:
    given = {mode: run(random_logits(), [SamplingParams()] * ROWS, mode=mode) for mode in MODES}
    for mode in MODES:
        assert given[mode].logprobs.shape == (ROWS,)
    assert given["truncate"].top_ids is None
    assert given["full"].top_ids.shape == given["full"].top_logprobs.shape == (ROWS, 20)
    assert given["full"].ranks.shape == (ROWS,)


@pytest.mark.parametrize(
    ("params", "modes"),
    [
        (SamplingParams(temperature=0.0, top_k=3), MODES),
        (SamplingParams(temperature=0.8, min_p=0.01), MODES),
        (SamplingParams(temperature=1.5, top_k=9, top_p=0.8), MODES[1:]),
    ],
    ids=["greedy", "temperature", "truncate"],
)
def test_a_more_general_mode_gives_the_same_token(params: SamplingParams, modes: list) -> None:
    outputs = [run(random_logits(), [params] * ROWS, mode=mode) for mode in modes]
    for output in outputs:
        assert np.array_equal(output.tokens, outputs[0].tokens)
        np.testing.assert_allclose(output.logprobs, outputs[0].logprobs, rtol=1e-6)


def test_the_same_seed_and_position_give_the_same_token_and_others_do_not() -> None:
    logits = np.tile(random_logits()[:1] / 3, (ROWS, 1))
    params = [SamplingParams()] * ROWS

    def tokens(seeds: list[int], prompt: list[int]) -> list[int]:
        return run(logits, params, mode="temperature", seeds=seeds, prompt=prompt).tokens.tolist()

    assert len(set(tokens([7] * ROWS, PROMPT))) == 1
    assert len(set(tokens(list(range(ROWS)), PROMPT))) > 2
    by_position = {tokens([7] * ROWS, [1] * n)[0] for n in range(1, 20)}
    assert len(by_position) > 5
    high_words = [7 + (i << 32) for i in range(ROWS)]
    assert len(set(tokens(high_words, PROMPT))) > 2


def test_a_seed_means_the_same_tokens_for_ever() -> None:
    """Golden values: a change of key derivation or draw breaks every stored seed."""
    logits = np.zeros((ROWS, VOCAB), np.float32)
    seeds = [0, 1, 2**32, 2**63 - 1, -(2**63), -2, 12345, 99]
    output = run(logits, [SamplingParams()] * ROWS, mode="temperature", seeds=seeds, prompt=PROMPT)
    assert output.tokens.tolist() == [58, 83, 36, 61, 51, 86, 16, 61]


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_batch_mates_never_change_a_row(data: st.DataObject) -> None:
    """Whatever stands in the other rows, NaN included, and wherever the row stands."""
    numbers = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    logits = numbers.normal(size=(ROWS, VOCAB)).astype(np.float32) * 3
    given = {"mode": "full", "prompt": PROMPT, "output": OUTPUT}
    alone = run(logits, MIXED, seeds=list(range(ROWS)), **given)
    order = numbers.permutation(ROWS)
    replaced = numbers.random(ROWS) < 0.5
    mates = np.where(replaced[:, None], numbers.normal(size=logits.shape), logits)
    poison = data.draw(st.sampled_from([0.0, np.nan, np.inf, -np.inf]))
    mates[replaced, 0] = poison
    together = run(mates[order], [MIXED[i] for i in order], seeds=[int(i) for i in order], **given)
    for place, row in enumerate(order):
        if not replaced[row]:
            assert together.tokens[place] == alone.tokens[row]
            assert together.logprobs[place] == alone.logprobs[row]
            assert np.array_equal(together.top_logprobs[place], alone.top_logprobs[row])
            assert together.status[place] == OK


@pytest.mark.parametrize("mode", MODES)
def test_broken_rows_are_reported_and_leave_their_neighbours_alone(mode: str) -> None:
    logits = random_logits()
    params = [SamplingParams(temperature=0.9, top_k=6)] * ROWS
    sound = run(logits, params, mode=mode)
    logits[1, 50] = np.nan
    logits[3, :] = np.nan
    logits[4, 100] = np.inf
    logits[6, :] = -np.inf
    logits[7, :100] = -np.inf  # one token is enough
    output = run(logits, params, mode=mode)
    bad = NOT_FINITE
    assert output.status.tolist() == [OK, bad, OK, bad, bad, OK, output.status[6], OK]
    # Of the model's own logits where these are looked at before the edits.
    assert output.status[6] == (bad if mode in FULL else NO_TOKEN)
    assert ((output.tokens >= 0) & (output.tokens < VOCAB)).all()
    assert output.tokens[7] == 100
    for row in (0, 2, 5):
        assert output.tokens[row] == sound.tokens[row]


def test_a_masked_nan_is_reported_all_the_same() -> None:
    logits = random_logits()
    logits[2, 9] = np.nan
    output = run(logits, [SamplingParams(allowed_token_ids=[1, 2])] * ROWS)
    assert output.status.tolist() == [NOT_FINITE if row == 2 else OK for row in range(ROWS)]


def test_a_row_whose_only_allowed_tokens_are_banned_is_reported() -> None:
    params = [SamplingParams(allowed_token_ids=[5], min_tokens=3), *MIXED[1:]]
    output = run(random_logits(), params, eos_token_ids=[5])
    assert output.status.tolist() == [NO_TOKEN] + [OK] * (ROWS - 1)


def test_extreme_but_finite_logits_are_sound() -> None:
    logits = random_logits()
    logits[0] *= 1e37
    logits[1] = np.finfo(np.float32).min
    logits[2] = np.finfo(np.float32).max
    logits[3, ::2] = np.finfo(np.float32).min
    for params in (SamplingParams(temperature=100.0), SamplingParams(temperature=2e-5, top_p=0.5)):
        for mode in MODES:
            output = run(logits, [params] * ROWS, mode=mode)
            assert (output.status == OK).all()
            assert ((output.tokens >= 0) & (output.tokens < VOCAB)).all()


def test_masks_biases_and_penalties_match_the_reference() -> None:
    logits = random_logits(5)
    params = [
        SamplingParams(temperature=0.0, logprobs=20, **fields)
        for fields in (
            {"repetition_penalty": 1.7},
            {"repetition_penalty": 0.5},
            {"presence_penalty": 1.5},
            {"frequency_penalty": -1.5},
            {"logit_bias": {0: 9.0, 100: -50.0, 33: 2.5}},
            {"allowed_token_ids": [0, 31, 32, 63, 64, 100]},
            {"min_tokens": 5, "stop_token_ids": [9]},
            {
                "repetition_penalty": 1.2,
                "presence_penalty": 0.7,
                "frequency_penalty": 0.4,
                "logit_bias": {4: 3.0, 5: -3.0},
            },
        )
    ]
    output = run(logits, params, prompt=PROMPT, output=OUTPUT, eos_token_ids=[8])
    for row, p in enumerate(params):
        banned = [8, 9] if p.min_tokens else []
        edited = processed_logits(logits[row], p, PROMPT, OUTPUT, banned)
        order = np.argsort(-edited, kind="stable")[:20]
        expected = np.log(np.maximum(probabilities(edited, p), 1e-300))
        allowed = np.isfinite(edited[order])
        assert np.array_equal(output.top_ids[row][allowed], order[allowed])
        np.testing.assert_allclose(
            output.top_logprobs[row][allowed], expected[order][allowed], rtol=1e-5, atol=1e-5
        )
        assert np.isneginf(output.top_logprobs[row][~allowed]).all()


def test_logprobs_ranks_and_the_likeliest_agree() -> None:
    logits = random_logits(6)
    output = run(logits, [SamplingParams(temperature=1.5, logprobs=5, top_k=20)] * ROWS)
    for row in range(ROWS):
        place = output.top_ids[row].tolist().index(output.tokens[row])
        assert output.ranks[row] == place + 1
        assert output.logprobs[row] == output.top_logprobs[row, place]
        assert np.isclose(np.exp(output.top_logprobs[row].astype(np.float64)).sum(), 1, atol=1e-5)


def test_greedy_logprob_is_the_largest_exactly_and_at_temperature_one() -> None:
    logits = random_logits(7)
    output = run(logits, [SamplingParams(temperature=0.0, logprobs=4)] * ROWS)
    assert np.array_equal(output.logprobs, output.top_logprobs.max(1))
    wide = logits.astype(np.float64)
    expected = wide.max(1) - np.log(np.exp(wide).sum(1))
    np.testing.assert_allclose(output.logprobs, expected, rtol=1e-5)
    assert (output.ranks == 1).all()


def test_more_logprobs_than_tokens_are_all_tokens() -> None:
    output = run(random_logits()[:2, :7], [SamplingParams(logprobs=20)] * 2)
    assert np.array_equal(np.sort(output.top_ids, 1), np.tile(np.arange(7), (2, 1)))


def test_padding_rows_are_harmless() -> None:
    logits = random_logits()
    logits[5:] = np.nan
    output = run(logits, MIXED[:5], prompt=PROMPT, output=OUTPUT, mode="full")
    assert (output.status[:5] == OK).all()
    assert ((output.tokens >= 0) & (output.tokens < VOCAB)).all()


def test_parameters_change_without_compiling() -> None:
    step = jax.jit(partial(sample, mode="full"))
    for params in ([SamplingParams()] * ROWS, MIXED, MIXED[::-1]):
        rows = make_rows(params, VOCAB, prompt=PROMPT, output=OUTPUT)
        step(
            random_logits(),
            pack(rows, "full", batch_size=ROWS, vocab_size=VOCAB),
        )
    assert step._cache_size() == 1


@pytest.mark.slow
def test_no_sort_and_few_arrays_of_vocabulary_size() -> None:
    """At Qwen3's vocabulary: temporaries are counted in copies of the logits."""
    batch, vocab = 4, 151_936
    logits = jax.ShapeDtypeStruct((batch, vocab), jnp.float32)
    rows = make_rows([SamplingParams()] * batch, vocab)
    for mode in MODES:
        arrays = pack(rows, mode, batch_size=batch, vocab_size=vocab)
        lowered = jax.jit(partial(sample, mode=mode)).lower(logits, arrays)
        for line in lowered.as_text().splitlines():
            if "stablehlo.sort" in line or "top_k" in line:
                assert f"x{vocab}x" not in line, line
    memory = lowered.compile().memory_analysis()
    assert memory.temp_size_in_bytes <= 7 * batch * vocab * 4
