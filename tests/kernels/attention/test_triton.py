"""The jax-triton twins: interpreted on CPU, lowered for a GPU, exact on one."""

import functools
import importlib.util
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.kernels.attention import op as attention
from jaxinfer.kernels.attention.pages import Pages
from jaxinfer.kernels.policy import Kernels
from tests.kernels.attention import attention_cases
from tests.kernels.h200_target import compile_for_h200, needs_plugin

_CASES = [*attention_cases.decode_cases(), *attention_cases.prefill_cases()]
# Compiled as a whole, as in serving: one operation at a time takes many times as long to compile.
_OP = jax.jit(
    functools.partial(attention.paged_attention, kernels=Kernels("triton")),
    static_argnames=("scale", "window", "max_query_len"),
)
_INTERPRETED = (
    "decode_edges_block8",
    "decode_gqa3_d64",
    "decode_all_empty",
    "decode_window",
    "prefill_gqa3_d64",
    "prefill_chunk_offsets",
    "prefill_window",
)

needs_jax_triton = pytest.mark.skipif(
    importlib.util.find_spec("jax_triton") is None,
    reason="jax-triton is not installed (pip install 'jaxinfer[triton]')",
)


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")
@pytest.mark.slow
def test_programs_match_fp64_in_tritons_interpreter():
    # A process of its own: Triton decides when it is imported whether it interprets.
    command = [sys.executable, "-m", "tests.kernels.attention.triton_interpreted", *_INTERPRETED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert {line.split()[1] for line in done.stdout.splitlines()} == set(_INTERPRETED)


@needs_jax_triton
@pytest.mark.gpu
@pytest.mark.parametrize("case", _CASES, ids=lambda case: case.name)
def test_attention_matches_fp64(case):
    attention_cases.check(_OP, case, jnp.bfloat16)


@needs_jax_triton
@pytest.mark.gpu
@pytest.mark.parametrize("decode", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_random_problems_match_fp64_in_float16(seed, decode):
    case = attention_cases.random_case(np.random.default_rng(seed), decode=decode)
    attention_cases.check(_OP, case, jnp.float16, seed=seed)


@needs_jax_triton
@needs_plugin
@pytest.mark.parametrize("max_query_len", [1, None])
def test_attention_lowers_for_a_gpu(max_query_len, monkeypatch):
    import jax_triton

    # Without a GPU to ask, jax-triton must be told what it compiles for.
    call = functools.partial(jax_triton.triton_call, compute_capability=90)
    monkeypatch.setattr(jax_triton, "triton_call", call)
    B, H, K, D, S, W, P = 8, 16, 8, 128, 16, 64, 100
    op = functools.partial(
        attention.paged_attention, scale=0.1, max_query_len=max_query_len, kernels=Kernels("triton")
    )
    numbers = [jax.ShapeDtypeStruct(s, jnp.int32) for s in ((B + 1,), (B,), (B, W))]
    pages = jax.ShapeDtypeStruct((P, S, K, D), jnp.bfloat16)
    q = jax.ShapeDtypeStruct((B, H, D), jnp.bfloat16)
    assert "triton_kernel_call" in compile_for_h200(op, q, Pages(pages, pages), *numbers).as_text()
