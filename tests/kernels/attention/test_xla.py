import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.kernels.attention.op import paged_attention
from jaxinfer.kernels.attention.pages import Pages
from jaxinfer.kernels.policy import Kernels
from tests.kernels.attention import attention_cases as cases
from tests.kernels.attention import covering_cases as covering

_FULL = [*cases.decode_cases(), *cases.shared_cases()]


@functools.cache
def _op(window, max_query_len, scale):
    op = functools.partial(
        paged_attention,
        scale=scale,
        window=window,
        max_query_len=max_query_len,
        kernels=Kernels("xla"),
    )
    return jax.jit(op, compiler_options=cases.QUICK_TO_COMPILE)


def _attention(*arrays, scale, window, max_query_len):
    return _op(window, max_query_len, scale)(*arrays)


@pytest.mark.parametrize("case", covering.params(covering.decode_cases(), _FULL))
def test_decode_equals_fp64(case):
    cases.check(_attention, case, jnp.float32)


def test_rows_that_are_all_empty_give_zeros():
    problem = cases.build(covering.decode_cases()[0], jnp.float32, 0)
    *arrays, contexts, tables = problem.arguments
    none = 0 * contexts, 0 * tables
    out = _attention(*arrays, *none, scale=problem.scale, window=None, max_query_len=1)
    assert not np.asarray(out).any()


@pytest.mark.parametrize(
    ("dtype", "decode"),
    [
        (jnp.bfloat16, True),
        (jnp.float16, False),
        pytest.param(jnp.bfloat16, False, marks=pytest.mark.exhaustive),
        pytest.param(jnp.float16, True, marks=pytest.mark.exhaustive),
    ],
)
def test_half_precision_equals_fp64_of_the_rounded_inputs(dtype, decode):
    lens = (1, 1, 1) if decode else (50, 1, 90)
    case = cases.Case("half", lens, (200, 1, 333), decode=decode)
    cases.check(_attention, case, dtype)


# An even seed is of a prefill, an odd one of decoding.
@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in range(2, 12))]
)
def test_random_cases_equal_fp64(seed):
    rng = np.random.default_rng(seed)
    cases.check(_attention, cases.random_case(rng, decode=bool(seed % 2)), jnp.float32, seed=seed)


def test_tiles_of_many_rows_equal_fp64(monkeypatch):
    # What a GPU runs: many rows and query blocks a tile, some of them beyond the last.
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")

    def attention(*arrays, **options):
        op = functools.partial(paged_attention, kernels=Kernels("xla"), **options)
        return jax.jit(op, compiler_options=cases.QUICK_TO_COMPILE)(*arrays)

    cases.check(attention, cases.Case("d", (1,) * 5, (3, 0, 200, 1, 90), decode=True), jnp.float32)
    prefill = cases.Case("p", (70, 1, 0, 130), (100, 7, 0, 130), pad_tokens=4)
    cases.check(attention, prefill, jnp.float32)


def test_without_causal_mask_every_query_sees_the_whole_context():
    problem = cases.build(cases.Case("full", (6,), (40,)), jnp.float32, 0)
    q, *rest = problem.arguments
    op = functools.partial(paged_attention, scale=problem.scale, causal=False)
    out = jax.jit(op, compiler_options=cases.QUICK_TO_COMPILE)(q, *rest)
    last = _attention(
        q.at[-1].set(q[0]), *rest, scale=problem.scale, window=None, max_query_len=None
    )
    # The last query of a causal row sees everything, so query 0 moved there must agree.
    np.testing.assert_allclose(out[0], last[-1], rtol=1e-5, atol=1e-5)


def test_prefill_temporaries_follow_the_tokens_not_batch_times_longest():
    # 16 rows, 64 queries in all, tables that reach 64k keys: dense scores would take 2 GiB.
    pages = jax.ShapeDtypeStruct((4097, 16, 2, 64), jnp.float32)
    shapes = (
        jax.ShapeDtypeStruct((64, 8, 64), jnp.float32),
        Pages(pages, pages),
        jax.ShapeDtypeStruct((17,), jnp.int32),
        jax.ShapeDtypeStruct((16,), jnp.int32),
        jax.ShapeDtypeStruct((16, 4096), jnp.int32),
    )
    op = functools.partial(paged_attention, scale=1.0, kernels=Kernels("xla"))
    memory = jax.jit(op).lower(*shapes).compile().memory_analysis()
    assert memory.temp_size_in_bytes < 8 << 20
