"""Kernels whose blocks stay on their multiprocessor fit there as often as they are launched."""

import re

import jax
import jax.numpy as jnp
import pytest

from jaxinfer.kernels.attention.op import paged_attention
from jaxinfer.kernels.attention.pages import Pages
from jaxinfer.kernels.attention.shared_prefix import SharedPrefixes
from jaxinfer.kernels.policy import Kernels
from tests.kernels.h200_target import compile_for_h200, needs_plugin

pytestmark = needs_plugin

_BLOCKS, _THREADS = 2, 256
_REGISTERS, _SHARED_BYTES = 65_536, 233_472  # of a multiprocessor
_RESERVED_BYTES = 1024 + 512  # of each block: the driver's, and barriers


def _int32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.int32)


@pytest.mark.parametrize(("group", "kv_heads"), [(2, 8), (4, 8), (5, 8), (8, 1)])
def test_two_blocks_of_the_kernels_of_shared_keys_fit(group, kv_heads, monkeypatch, capfd):
    """No other test has as many rows: what is compiled already says nothing."""
    monkeypatch.setenv("MOSAIC_GPU_DUMP_PTXAS", "1")
    monkeypatch.setenv("MOSAIC_GPU_DUMP_RESOURCES", "1")
    rows, D, S = 72, 128, 16

    def op(*arguments):
        *arguments, shared = arguments
        return paged_attention(
            *arguments, scale=D**-0.5, max_query_len=1, shared=shared, kernels=Kernels("mosaic")
        )

    q = jax.ShapeDtypeStruct((rows, group * kv_heads, D), jnp.bfloat16)
    pages = jax.ShapeDtypeStruct((999, S, kv_heads, D), jnp.bfloat16)
    shared = SharedPrefixes(_int32(1), _int32(44, 4), _int32(rows, 4))
    arguments = (_int32(rows + 1), _int32(rows), _int32(rows, 64), shared)
    compile_for_h200(op, q, Pages(pages, pages), *arguments)
    said = "".join(capfd.readouterr())
    registers = [int(n) for n in re.findall(r"Used (\d+) registers", said)]
    shared_bytes = [int(n) for n in re.findall(r"smem_scratch_bytes=(\d+)", said)]
    assert len(registers) == len(shared_bytes) == 2
    assert max(registers) * _THREADS * _BLOCKS <= _REGISTERS
    assert (max(shared_bytes) + _RESERVED_BYTES) * _BLOCKS <= _SHARED_BYTES
