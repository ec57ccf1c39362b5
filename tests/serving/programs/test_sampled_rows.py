"""What a forward program hands to its sampler's comes apart as it was put together."""

import jax
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxinfer.serving.programs.layout import DecodeShape, PrefillShape, SampledRows
from jaxinfer.serving.sampling.layout import Column, SamplingArrays, num_special_rows

_ROWS = st.sampled_from([1, 2, 3, 8, 63, 64, 65, 200])
_SEEDS = st.integers(0, 2**32 - 1)


def _sampled_rows(rows, seed):
    numbers = np.random.default_rng(seed)

    def any_of(*shape):
        return numbers.integers(-(2**31), 2**31, shape, np.int64).astype(np.int32)

    arrays = SamplingArrays(any_of(rows, len(Column)), special=any_of(num_special_rows(rows)))
    return SampledRows(any_of(rows), any_of(rows), arrays)


@given(_ROWS, _SEEDS)
@settings(max_examples=40, deadline=None)
def test_splitting_is_the_inverse_of_joining(rows, seed):
    given = _sampled_rows(rows, seed)
    joined = given.joined()
    assert joined.shape == (SampledRows.size(rows),)
    assert joined.dtype == np.int32
    taken_apart = SampledRows.split(joined, rows)
    assert jax.tree.structure(taken_apart) == jax.tree.structure(given)
    for before, after in zip(jax.tree.leaves(given), jax.tree.leaves(taken_apart), strict=True):
        np.testing.assert_array_equal(before, after)


@given(
    rows=_ROWS,
    width=st.integers(1, 40),
    work_items=st.sampled_from([0, 5]),
    is_decode=st.booleans(),
    seed=_SEEDS,
)
@settings(max_examples=40, deadline=None)
def test_a_packed_batch_ends_with_how_its_rows_are_sampled(
    rows, width, work_items, is_decode, seed
):
    shape = DecodeShape(rows, width, work_items) if is_decode else PrefillShape(300, rows, width)
    packed = shape.blank()
    sampling = _sampled_rows(rows, seed).sampling
    views = shape.sampling(shape.arrays(packed))
    views.scalars[:], views.special[:] = sampling.scalars, sampling.special
    fields = shape.split(packed)
    np.testing.assert_array_equal(fields.sampling.scalars, sampling.scalars)
    np.testing.assert_array_equal(fields.sampling.special, sampling.special)
    blank = shape.split(shape.blank())
    for field in set(fields._fields) - {"sampling"}:
        for ours, untouched in zip(
            jax.tree.leaves(getattr(fields, field)),
            jax.tree.leaves(getattr(blank, field)),
            strict=True,
        ):
            np.testing.assert_array_equal(ours, untouched)
    assert not jax.tree.leaves(fields.for_layers().sampling)
