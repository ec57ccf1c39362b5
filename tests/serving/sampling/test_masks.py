"""Masks of grammars in the modes that know no other edit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.serving.requests.result import NO_TOKEN, NOT_FINITE, OK
from jaxinfer.serving.sampling import sampler
from jaxinfer.serving.sampling.layout import (
    EDIT_WIDTH,
    Column,
    LogitEdits,
    Need,
    SamplingArrays,
)
from jaxinfer.serving.sampling.masks import with_masks

B, V = 6, 70
SLOTS = jnp.array([4, 0, 3, 1, 5, 2])

# Operation by operation, XLA would compile hundreds of programs.
sample = jax.jit(sampler.sample, static_argnames=("mode", "max_logprobs"))


def scalars(temperature):
    rows = np.zeros((B, len(Column)), np.int32)
    rows[:, Column.TEMPERATURE] = np.float32(temperature).view(np.int32)
    rows[:, Column.TOP_P] = rows[:, Column.REPETITION_PENALTY] = np.float32(1).view(np.int32)
    rows[:, Column.SEED_LOW] = np.arange(B)
    rows[:4, Column.NEEDS] = Need.EDITS
    return jnp.asarray(rows)


def masks(rng):
    allowed = rng.random((B, 96)) < 0.2
    allowed[:, :3] = True
    return allowed, np.packbits(allowed, axis=1, bitorder="little").view(np.int32)


def in_full(rows, words):
    """The arrays of mode "full" for rows with these masks and no other edit."""
    edits = LogitEdits(
        jnp.full((B, EDIT_WIDTH), -1),
        jnp.zeros((B, EDIT_WIDTH), jnp.float32),
        jnp.zeros((B, EDIT_WIDTH), jnp.int32),
        words,
    )
    return SamplingArrays(rows, jnp.zeros((B, V), jnp.int32), edits)


@pytest.mark.parametrize(
    ("mode", "temperature"), [("temperature", 0.0), ("temperature", 1.0), ("truncate", 1.0)]
)
def test_a_masked_row_is_sampled_as_in_mode_full(mode, temperature):
    rng = np.random.default_rng(0)
    logits = jnp.asarray(rng.normal(size=(B, V)), jnp.float32)
    allowed, words = masks(rng)
    words = jnp.asarray(words)
    rows = scalars(temperature)
    plain = sample(logits, with_masks(SamplingArrays(rows), words, SLOTS), mode=mode)
    full = sample(logits, in_full(rows, words[SLOTS]), mode="full", max_logprobs=2)
    assert plain.tokens.tolist() == full.tokens.tolist()
    assert allowed[np.asarray(SLOTS[:4]), np.asarray(plain.tokens)[:4]].all()
    free = sample(logits, SamplingArrays(rows), mode=mode)
    assert (free.tokens != plain.tokens)[:4].any()
    assert (free.tokens == plain.tokens)[4:].all()


@pytest.mark.parametrize("mode", ["temperature", "truncate"])
def test_a_row_that_may_choose_nothing_says_so(mode):
    rows = scalars(1.0)
    nothing = SamplingArrays(rows, masks=jnp.zeros((B, 3), jnp.int32))
    output = sample(jnp.zeros((B, V), jnp.float32), nothing, mode=mode)
    assert output.status.tolist() == [NO_TOKEN] * 4 + [OK] * 2


@pytest.mark.parametrize("mode", ["temperature", "truncate", "full"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_bad_logit_of_a_token_that_is_not_allowed_is_reported(mode, bad):
    rows, words = scalars(1.0), jnp.full((B, 3), 6, jnp.int32)
    logits = jnp.zeros((B, V), jnp.float32).at[2, 9].set(bad).at[5, 69].set(bad)
    arrays = SamplingArrays(rows, masks=words) if mode != "full" else in_full(rows, words)
    output = sample(logits, arrays, mode=mode)
    bad = NOT_FINITE
    assert output.status.tolist() == [OK, OK, bad, OK, OK, bad]
