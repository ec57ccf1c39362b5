"""The sampled distribution: chi-squared, exact supports, ties, and rules between parameters."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from jaxinfer.sampling_params import SamplingParams
from jaxinfer.serving.requests.result import OK
from jaxinfer.serving.sampling.layout import Column
from jaxinfer.serving.sampling.sampler import sample
from tests.serving.sampling.sampling_reference import (
    batch_mode,
    make_rows,
    pack,
    probabilities,
    processed_logits,
    run,
)

PROMPT, OUTPUT = [1, 2, 3], [4, 4, 5, 1]
COPIES = 256
ROWS, VOCAB = 8, 97


def draw_many(logits: np.ndarray, params: list[SamplingParams], steps: int) -> np.ndarray:
    """Draw `steps * COPIES` tokens for each params, `[len(params), draws]`, in one call."""
    copies = [p for p in params for _ in range(COPIES)]
    rows = make_rows(copies, len(logits), prompt=PROMPT, output=OUTPUT)
    mode = batch_mode(rows)
    arrays = pack(rows, mode, batch_size=len(rows), vocab_size=len(logits))
    tiled = jnp.tile(jnp.asarray(logits, jnp.float32), (len(rows), 1))

    @jax.jit
    def draw(arrays):
        def one(step):
            scalars = arrays.scalars.at[:, Column.POSITION].add(step)
            return sample(tiled, arrays._replace(scalars=scalars), mode=mode).tokens

        return jax.lax.map(one, jnp.arange(steps, dtype=jnp.int32))

    tokens = np.asarray(draw(arrays))  # [steps, rows]
    return tokens.reshape(steps, len(params), COPIES).swapaxes(0, 1).reshape(len(params), -1)


def assert_distribution(tokens: np.ndarray, expected: np.ndarray) -> None:
    """Chi-squared at 1e-4, rare tokens (fewer than 5 expected) together; nothing impossible."""
    counts = np.bincount(tokens, minlength=len(expected))
    assert not counts[expected == 0].any(), "a token of probability zero was drawn"
    wanted = expected * len(tokens)
    common = wanted >= 5
    assert common.any()
    observed = np.append(counts[common], counts[~common].sum())
    wanted = np.append(wanted[common], wanted[~common].sum())
    if wanted[-1] < 5:
        observed[-2] += observed[-1]
        wanted[-2] += wanted[-1]
        observed, wanted = observed[:-1], wanted[:-1]
    if len(wanted) > 1:
        assert stats.chisquare(observed, wanted).pvalue > 1e-4


MIXES = {
    "temperature": [
        SamplingParams(temperature=1.0),
        SamplingParams(temperature=0.5),
        SamplingParams(temperature=3.0),
        SamplingParams(min_p=0.1),
    ],
    "truncate": [
        SamplingParams(top_k=7),
        SamplingParams(top_p=0.7),
        SamplingParams(temperature=0.6, top_k=20, top_p=0.95),
        SamplingParams(temperature=2.0, min_p=0.05, top_k=30, top_p=0.8),
        SamplingParams(),
    ],
    "full": [
        SamplingParams(repetition_penalty=1.5),
        SamplingParams(presence_penalty=1.0, frequency_penalty=0.5, top_k=15),
        SamplingParams(logit_bias={0: 3.0, 4: -100.0}, top_p=0.9),
        SamplingParams(allowed_token_ids=[3, 4, 5, 40, 63], temperature=2.0),
    ],
}


@pytest.mark.parametrize("mode", MIXES)
def test_frequencies_match_the_reference(mode: str) -> None:
    logits = np.random.default_rng(1).normal(size=64).astype(np.float32) * 2
    tokens = draw_many(logits, MIXES[mode], steps=96)  # 24,576 draws each
    for row, params in zip(tokens, MIXES[mode], strict=True):
        assert_distribution(
            row, probabilities(processed_logits(logits, params, PROMPT, OUTPUT), params)
        )


def test_frequencies_hold_over_many_blocks_and_rare_tokens() -> None:
    """A flat vocabulary in which every token is rare: block edges and fine probabilities count."""
    vocab = 1000
    logits = np.random.default_rng(2).normal(size=vocab).astype(np.float32) * 0.2
    params = SamplingParams()
    tokens = draw_many(logits, [params], steps=400)  # 102,400 draws
    assert_distribution(tokens[0], probabilities(logits, params))


def test_masses_between_distant_logits_are_right() -> None:
    logits = np.full(500, -40.0, np.float32)
    logits[[0, 250, 499]] = [0.0, 1.0, 2.0]
    tokens = draw_many(logits, [SamplingParams()], steps=80)
    assert set(np.unique(tokens)) == {0, 250, 499}
    assert_distribution(tokens[0], probabilities(logits, SamplingParams()))


def support(output, row: int) -> set[int]:
    """The tokens that mode "full" reports with a finite log-probability."""
    return set(output.top_ids[row][np.isfinite(output.top_logprobs[row])].tolist())


def report(logits: np.ndarray, params: list[SamplingParams]):
    """Every token's log-probability, by mode "full"; one shape for all, as compiling is slow."""
    padded = np.full((ROWS, VOCAB), -np.inf, np.float32)
    padded[:, : len(logits)] = logits
    return run(padded, params, mode="full", max_logprobs=VOCAB)


def test_top_k_keeps_exactly_k_and_the_lowest_ids_of_ties() -> None:
    logits = np.array([1.0, 3.0, 2.0, 2.0, 0.0, 2.0, -1.0, 3.0], np.float32)
    output = report(logits, [SamplingParams(top_k=k) for k in (1, 2, 3, 4, 5, 8, 100)])
    wanted = [{1}, {1, 7}, {1, 7, 2}, {1, 7, 2, 3}, {1, 7, 2, 3, 5}, set(range(8)), set(range(8))]
    assert [support(output, i) for i in range(7)] == wanted


def test_top_p_keeps_the_token_that_crosses_p() -> None:
    logits = np.log(np.array([0.1, 0.4, 0.2, 0.3], np.float32))
    ps = (0.001, 0.39, 0.41, 0.69, 0.71, 0.89, 0.91, 0.9999)
    output = report(logits, [SamplingParams(top_p=p) for p in ps])
    sizes = [1, 1, 2, 2, 3, 3, 4, 4]
    assert [len(support(output, i)) for i in range(8)] == sizes
    assert support(output, 2) == {1, 3}


def test_top_p_keeps_the_lowest_ids_of_ties() -> None:
    logits = np.zeros(10, np.float32)
    output = report(logits, [SamplingParams(top_p=p) for p in (0.05, 0.3, 0.31, 0.95)])
    assert [support(output, i) for i in range(4)] == [set(range(n)) for n in (1, 3, 4, 10)]


def test_top_p_is_of_what_top_k_and_min_p_left() -> None:
    logits = np.log(np.array([0.4, 0.3, 0.2, 0.1], np.float32))
    # Of the two likeliest, 0.4/0.7 is 57%.
    output = report(
        logits,
        [
            SamplingParams(top_k=2, top_p=0.56),
            SamplingParams(top_k=2, top_p=0.58),
            SamplingParams(min_p=0.7, top_p=0.56),
            SamplingParams(min_p=0.7, top_k=3),
        ],
    )
    assert [support(output, i) for i in range(4)] == [{0}, {0, 1}, {0}, {0, 1}]


def test_min_p_keeps_tokens_relative_to_the_likeliest_and_its_ties() -> None:
    logits = np.log(np.array([0.4, 0.05, 0.15, 0.4], np.float32))
    output = report(logits, [SamplingParams(min_p=p) for p in (0.1, 0.2, 0.5, 1.0)])
    assert [support(output, i) for i in range(4)] == [{0, 1, 2, 3}, {0, 2, 3}, {0, 3}, {0, 3}]


def test_temperature_comes_before_min_p_and_top_p() -> None:
    logits = np.log(np.array([0.7, 0.2, 0.1], np.float32))
    hot = report(logits, [SamplingParams(temperature=t, top_p=0.6) for t in (1.0, 10.0)])
    assert [support(hot, i) for i in range(2)] == [{0}, {0, 1}]
    cold = report(logits, [SamplingParams(temperature=t, min_p=0.2) for t in (1.0, 0.5)])
    assert [support(cold, i) for i in range(2)] == [{0, 1}, {0}]


def random_logits(seed: int, rows: int = ROWS, vocab: int = VOCAB) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, vocab)).astype(np.float32) * 4


@pytest.mark.parametrize(
    "off",
    [
        {"top_k": 97},
        {"top_k": 0},
        {"top_k": -1},
        {"top_k": 2**31 - 1},
        {"top_p": 1.0},
        {"min_p": 0.0},
        {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0},
        {"logit_bias": {5: 0.0}},
        {"allowed_token_ids": list(range(97))},
    ],
    ids=str,
)
def test_neutral_values_change_nothing(off: dict) -> None:
    logits = random_logits(3)
    given = {"mode": "full", "max_logprobs": VOCAB, "prompt": PROMPT, "output": OUTPUT}
    plain = run(logits, [SamplingParams()] * ROWS, **given)
    neutral = run(logits, [SamplingParams(**off)] * ROWS, **given)
    assert np.array_equal(plain.tokens, neutral.tokens)
    assert np.array_equal(plain.logprobs, neutral.logprobs)


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0.0),
        SamplingParams(temperature=1e-6),
        SamplingParams(temperature=1e-4),
        SamplingParams(top_k=1),
        SamplingParams(top_p=1e-6),
        SamplingParams(min_p=1.0),
    ],
    ids=repr,
)
def test_limits_are_argmax(params: SamplingParams) -> None:
    logits = random_logits(4)
    assert np.array_equal(run(logits, [params] * ROWS).tokens, logits.argmax(1))


@given(
    st.lists(
        st.sampled_from([-np.inf, -60.0, -2.0, -1.0, 0.0, 0.5, 1.0, 3.0]), min_size=17, max_size=17
    ),
    st.lists(
        st.tuples(
            st.sampled_from([0.3, 1.0, 2.0]),
            st.integers(0, 18),
            st.sampled_from([0.05, 0.33, 0.5, 0.77, 0.99, 1.0]),
            st.sampled_from([0.0, 0.013, 0.2, 0.9]),
        ),
        min_size=4,
        max_size=4,
    ),
)
@settings(max_examples=100, deadline=None)
def test_supports_and_logprobs_match_the_reference(
    values: list[float], fields: list[tuple[float, int, float, float]]
) -> None:
    """Few distinct logits, so that ties at every boundary are the rule."""
    names = ("temperature", "top_k", "top_p", "min_p")
    params = [SamplingParams(**dict(zip(names, row, strict=True))) for row in fields]
    logits = np.array(values, np.float32)
    if np.isneginf(logits).all():
        logits[3] = 0.0
    output = report(logits, params)
    assert (output.status[: len(params)] == OK).all()
    for i, p in enumerate(params):
        expected = np.zeros(VOCAB)
        expected[:17] = probabilities(logits, p)
        actual = np.zeros(VOCAB)
        actual[output.top_ids[i]] = np.exp(output.top_logprobs[i].astype(np.float64))
        np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=1e-12)
        assert expected[output.tokens[i]] > 0
        assert np.isclose(np.exp(output.logprobs[i]), expected[output.tokens[i]], rtol=2e-5)
