"""Kernels keep their values in registers, as they are compiled where JAX's extras are installed."""

import functools
import re

import jax
import jax.numpy as jnp
import pytest

from jaxinfer.kernels.attention.op import paged_attention
from jaxinfer.kernels.attention.pages import Pages
from jaxinfer.kernels.experts.codes import QuantizedExperts
from jaxinfer.kernels.experts.groups import Tiles
from jaxinfer.kernels.experts.mosaic import fused, grouped_codes, places
from jaxinfer.kernels.experts.mosaic.spread_codes import BEHIND, CodeRows
from jaxinfer.kernels.fp8 import FP8
from jaxinfer.kernels.matmul.mosaic import medium, small
from jaxinfer.kernels.matmul.quantized import QuantizedLinear
from jaxinfer.kernels.mosaic import registers
from jaxinfer.kernels.policy import Kernels
from tests.kernels.h200_target import compile_for_h200, needs_plugin

# Where registers can't be moved: what an item of prefill keeps besides its loops over keys.
_SPILLED = {"prefill": 0 if registers.can_be_moved() else 128}
_LAYERS = {"0.6b": (1024, 3072), "4b": (2560, 9728), "8b": (4096, 12288), "14b": (5120, 17408)}


def _shape(*shape, dtype=jnp.bfloat16):
    return jax.ShapeDtypeStruct(shape, dtype)


def _int32(*shape):
    return _shape(*shape, dtype=jnp.int32)


def _attention(tokens, rows, **options):
    D, pages = 128, _shape(500, 16, 8, 128)
    op = functools.partial(paged_attention, scale=D**-0.5, kernels=Kernels("mosaic"), **options)
    tables = _int32(rows + 1), _int32(rows), _int32(rows, 72)
    compile_for_h200(op, _shape(tokens, 16, D), Pages(pages, pages), *tables)
    return True


def _gate_and_up(name, B):
    size, features = _LAYERS[name]
    weight = _shape(features, size)
    is_taken = medium.choose(B, [weight.shape] * 2, weight.dtype, matrices=2) is not None
    if is_taken:
        compile_for_h200(medium.gated, _shape(B, size), weight, weight)
    return is_taken


def _gate_and_up_in_4_bits(B, *, zeros):
    size, features = _LAYERS["14b"]
    zero = _shape(features, size // 128, dtype=jnp.uint8) if zeros else None
    scale = _shape(features, size // 128, dtype=jnp.float32)
    weight = QuantizedLinear(_shape(features, size // 2, dtype=jnp.uint8), scale, zero)
    gated = functools.partial(small.norm_gated, eps=1e-6)
    compile_for_h200(gated, _shape(B, size), _shape(size), weight, weight)
    return True


def _experts(T, *, codes):
    def run(chosen, marks, is_token, rows, *matrices):
        groups, rows, counts = places.place(
            chosen, marks, is_token, rows, 128, fused.ROWS, codes=codes
        )
        return fused.gated_project(rows, *matrices, groups.tiles, counts)

    def matrix(outputs, inputs):
        if not codes:
            return _shape(128, outputs, inputs)
        scale = _shape(128, outputs // 128, inputs // 128, dtype=jnp.float32)
        return QuantizedExperts(_shape(128, outputs, inputs, dtype=FP8), scale)

    N, gate, down = -(-T // 64) * 64, matrix(1536, 4096), matrix(4096, 1536)
    given = _int32(8, N), _shape(N, 128), _int32(N), _shape(T, 4096)
    compile_for_h200(run, *given, gate, gate, down)
    return True


def _experts_of_codes(rows, hidden, width):
    """Both products of tiles of so many rows; hidden size and width in groups of 128."""

    def matrix(outputs, inputs):
        codes = _shape(8, 128 * outputs, 128 * inputs, dtype=FP8)
        return QuantizedExperts(codes, _shape(8, outputs, inputs, dtype=jnp.float32))

    def both(x, gate, down, tiles):
        inner = grouped_codes.gated(x, gate, gate, tiles, rows)
        return grouped_codes.project(inner, down, tiles, rows)

    scale = _shape(hidden, 1000 + BEHIND, dtype=jnp.float32)
    x = CodeRows(_shape(1000, 128 * hidden, dtype=FP8), scale)
    tiles = Tiles(_int32(1), *(_int32(16),) * 3)
    compile_for_h200(both, x, matrix(width, hidden), matrix(hidden, width), tiles)
    return True


_PROGRAMS = {
    "decode": functools.partial(_attention, 72, 72, max_query_len=1),
    "prefill": functools.partial(_attention, 1032, 8),
    **{
        f"gate and up of {name}, {B} rows": functools.partial(_gate_and_up, name, B)
        for name in _LAYERS
        for B in (120, 248)
    },
    "experts of 235B-A22B, 40 rows": functools.partial(_experts, 40, codes=False),
    "experts of 235B-A22B in fp8, 248 rows": functools.partial(_experts, 248, codes=True),
    **{
        f"experts of codes, {rows} rows, {hidden} groups": functools.partial(
            _experts_of_codes, rows, hidden, width
        )
        for rows in (32, 128)
        for hidden, width in ((16, 6), (17, 5))
    },
    "gate and up in 4 bits, a row": functools.partial(_gate_and_up_in_4_bits, 1, zeros=False),
    "gate and up in 4 bits, 16 rows": functools.partial(_gate_and_up_in_4_bits, 16, zeros=True),
}


@needs_plugin
@pytest.mark.parametrize("name", _PROGRAMS)
def test_few_values_lie_in_local_memory(name, monkeypatch, capfd):
    """Sizes that no other test has: what is compiled already says nothing."""
    monkeypatch.setenv("MOSAIC_GPU_DUMP_PTXAS", "1")
    is_compiled = _PROGRAMS[name]()
    said = "".join(capfd.readouterr())
    spilled = [int(n) for n in re.findall(r"(\d+) bytes spill stores", said)]
    assert bool(spilled) == is_compiled
    assert max(spilled, default=0) <= _SPILLED.get(name, 0)


def test_two_consumers_of_many_sums_are_left_to_xla_where_registers_cant_be_moved(monkeypatch):
    for movable in (True, False):
        monkeypatch.setattr(registers, "can_be_moved", lambda movable=movable: movable)
        for name, is_taken in (("0.6b", True), ("4b", movable), ("8b", movable)):
            size, features = _LAYERS[name]
            config = medium.choose(256, [(features, size)] * 2, jnp.bfloat16, matrices=2)
            assert (config is not None) == is_taken
