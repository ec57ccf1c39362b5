"""Rows that were sampled in full take their places among the others."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.serving.sampling.sampler import StepOutput, merge

_B = 6


def _plain():
    return StepOutput(jnp.arange(_B, dtype=jnp.int32), jnp.full(_B, 1), -jnp.arange(6.0))


def _full(count):
    ids = 100 + jnp.arange(count, dtype=jnp.int32)
    tops = jnp.stack([ids, ids + 1], axis=1)
    return StepOutput(ids, ids % 4, ids.astype(jnp.float32), tops, tops.astype(jnp.float32), ids)


@pytest.mark.parametrize("special", [[], [0], [5, 2], [3, 1, 4], [2, 0, 1, 5, 4, 3]])
def test_special_rows_get_all_fields_and_others_keep_theirs(special):
    padded = [*special, *[_B] * (_B - len(special))]
    full, plain = _full(_B), _plain()
    merged = merge(plain, full, jnp.asarray(padded, jnp.int32))
    for name in ("tokens", "status", "logprobs", "top_ids", "top_logprobs", "ranks"):
        new, old = np.asarray(getattr(full, name)), getattr(plain, name)
        expected = np.zeros_like(new) if old is None else np.array(old)
        expected[special] = new[: len(special)]
        np.testing.assert_array_equal(getattr(merged, name), expected, err_msg=name)
