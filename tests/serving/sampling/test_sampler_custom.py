"""A user's own sampling code: what it is given, where it acts, and how mistakes are reported."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.sampling_params import SamplingParams
from jaxinfer.serving.requests.result import LEFT_VOCAB, NOT_FINITE, OK
from jaxinfer.serving.sampling.sampler import check_logits_processor, check_sampler, sample
from tests.serving.sampling.sampling_reference import make_rows, pack, probabilities, run

ROWS, VOCAB = 6, 40
PROMPT, OUTPUT = [1, 2, 3], [4, 5]


def run_custom(logits: np.ndarray, params: list[SamplingParams], mode: str, **custom):
    rows = make_rows(params, VOCAB, prompt=PROMPT, output=OUTPUT)
    arrays = pack(rows, mode, batch_size=ROWS, vocab_size=VOCAB)
    return jax.tree.map(np.asarray, jax.jit(partial(sample, mode=mode, **custom))(logits, arrays))


def random_logits() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(ROWS, VOCAB)).astype(np.float32)


@pytest.mark.parametrize("mode", ["temperature", "truncate"])
def test_logits_processor_acts_in_every_mode(mode: str) -> None:
    def ban_even(logits, state):
        return jnp.where(jnp.arange(VOCAB) % 2 == 0, -jnp.inf, logits)

    output = run_custom(
        random_logits(), [SamplingParams(temperature=1.0)] * ROWS, mode, logits_processor=ban_even
    )
    assert (output.tokens % 2 == 1).all()
    assert (output.status == OK).all()


def test_logits_processor_comes_after_bans_and_before_temperature() -> None:
    def double(logits, state):
        return logits * 2

    logits = random_logits()
    params = SamplingParams(temperature=0.5, allowed_token_ids=[3, 4, 5], logprobs=5)
    output = run_custom(logits, [params] * ROWS, "full", logits_processor=double)
    for row in range(ROWS):
        expected = probabilities(2 * logits[row, [3, 4, 5]], SamplingParams(temperature=0.5))
        actual = expected[output.tokens[row] - 3]
        assert np.isclose(np.exp(output.logprobs[row]), actual, rtol=1e-5)


def test_a_processor_that_breaks_a_row_fails_that_row_only() -> None:
    def poison_first(logits, state):
        return logits.at[0, 0].set(jnp.nan)

    output = run_custom(
        random_logits(), [SamplingParams()] * ROWS, "temperature", logits_processor=poison_first
    )
    assert output.status.tolist() == [NOT_FINITE] + [OK] * (ROWS - 1)


def test_a_processor_hides_no_broken_logit_where_the_models_own_are_reported() -> None:
    logits = random_logits()
    logits[2, 7] = np.nan
    output = run_custom(
        logits,
        [SamplingParams(logprobs=5)] * ROWS,
        "full",
        logits_processor=lambda logits, state: jnp.nan_to_num(logits),
    )
    assert output.status.tolist() == [NOT_FINITE if row == 2 else OK for row in range(ROWS)]


def test_state_tells_what_its_documentation_says() -> None:
    seen = {}

    def spy(logits, state):
        jax.debug.callback(lambda **values: seen.update(values), **vars(state))
        return logits

    params = [SamplingParams(temperature=0.5, repetition_penalty=1.1)] * ROWS
    last = jnp.arange(ROWS, dtype=jnp.int32)
    run_custom(random_logits(), params, "full", logits_processor=spy, last_token_ids=last)
    jax.effects_barrier()
    assert np.asarray(seen["positions"]).tolist() == [5] * ROWS
    assert np.asarray(seen["seeds"]).tolist() == [[i, 0] for i in range(ROWS)]
    assert np.allclose(seen["temperature"], 0.5)
    assert np.asarray(seen["last_token_ids"]).tolist() == list(range(ROWS))
    assert np.asarray(seen["prompt_lengths"]).tolist() == [3] * ROWS
    assert set(np.flatnonzero(seen["in_prompt"][0])) == set(PROMPT)
    assert seen["output_counts"][0].tolist() == [OUTPUT.count(token) for token in range(VOCAB)]


@pytest.mark.parametrize("mode", ["temperature", "truncate"])
def test_custom_sampler_replaces_the_draw(mode: str) -> None:
    def gumbel(logits, state, keys):
        noise = jax.vmap(lambda key: jax.random.gumbel(key, (VOCAB,)))(keys)
        return jnp.argmax(logits + noise, axis=1).astype(jnp.int32)

    logits = random_logits()
    first, second = (
        run_custom(logits, [SamplingParams(temperature=2.0)] * ROWS, mode, sampler=gumbel)
        for _ in range(2)
    )
    assert np.array_equal(first.tokens, second.tokens)
    assert len(set(first.tokens.tolist())) > 1
    row = np.arange(ROWS)
    expected = [probabilities(values, SamplingParams(temperature=2.0)) for values in logits]
    assert np.allclose(np.exp(first.logprobs), np.array(expected)[row, first.tokens], rtol=1e-5)


def test_a_custom_token_outside_the_vocabulary_fails_its_row() -> None:
    def careless(logits, state, keys):
        return jnp.array([0, VOCAB, -1, 39, 2**31 - 1, 5], jnp.int32)

    output = run_custom(random_logits(), [SamplingParams()] * ROWS, "truncate", sampler=careless)
    assert output.status.tolist() == [OK, LEFT_VOCAB, LEFT_VOCAB, OK, LEFT_VOCAB, OK]
    assert ((output.tokens >= 0) & (output.tokens < VOCAB)).all()


def test_without_custom_code_nothing_changes() -> None:
    params = [SamplingParams()] * ROWS
    plain = run(random_logits(), params, mode="temperature", prompt=PROMPT, output=OUTPUT)
    same = run_custom(random_logits(), params, "temperature", logits_processor=lambda x, state: x)
    assert np.array_equal(plain.tokens, same.tokens)


def test_sound_callables_pass_the_checks() -> None:
    check_logits_processor(lambda logits, state: logits / state.temperature[:, None], vocab_size=9)
    check_sampler(lambda logits, state, keys: jnp.argmax(logits, 1).astype(jnp.int32), vocab_size=9)


@pytest.mark.parametrize(
    ("processor", "error", "message"),
    [
        (3, TypeError, r"logits_processor must be callable, got int"),
        (lambda logits, state: logits[:, :3], ValueError, r"float32 of shape \(2, 9\).*\(2, 3\)"),
        (lambda logits, state: logits > 0, TypeError, r"float32 of shape \(2, 9\).*bool"),
        (lambda logits, state: logits.astype(jnp.bfloat16), TypeError, "bfloat16"),
        (lambda logits, state: None, TypeError, "one array.*NoneType"),
        (lambda logits, state: (logits, state), TypeError, "one array.*tuple"),
        (lambda logits: logits, ValueError, "logits_processor failed.*TypeError"),
        (lambda logits, state: logits[state.nothing], ValueError, "AttributeError.*nothing"),
        (lambda logits, state: float(logits[0, 0]), ValueError, "logits_processor failed"),
    ],
)
def test_bad_logits_processor_is_reported(processor, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        check_logits_processor(processor, vocab_size=9)


@pytest.mark.parametrize(
    ("sampler", "error", "message"),
    [
        ("argmax", TypeError, "sampler must be callable, got str"),
        (lambda logits, state, keys: logits, TypeError, r"int32 of shape \(2,\).*float32"),
        (
            lambda logits, state, keys: jnp.zeros((2, 1), jnp.int32),
            ValueError,
            r"int32 of shape \(2,\), got shape \(2, 1\)",
        ),
        (lambda logits, state: logits, ValueError, "sampler failed"),
    ],
)
def test_bad_sampler_is_reported(sampler, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        check_sampler(sampler, vocab_size=9)
