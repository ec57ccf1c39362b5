"""A kernel built for larger arrays serves many shapes, and XLA still learns the true ones.

Lowering is enough to see it, so these run without a GPU and without its compiler.
"""

import functools
import re

import jax
import jax.numpy as jnp
import pytest

from jaxinfer.kernels.attention.mosaic import decode
from jaxinfer.kernels.attention.mosaic.prefill import paged_prefill_attention
from jaxinfer.kernels.attention.pages import PagedRows, Pages, Scoring
from jaxinfer.kernels.mosaic.built_for import call_built_for
from tests.kernels.h200_target import lower_for_h200


def _shape(*shape, dtype=jnp.bfloat16):
    return jax.ShapeDtypeStruct(shape, dtype)


def _prefill(T, B, P):
    pages = _shape(P, 16, 2, 64)
    tables = (_shape(n, dtype=jnp.int32) for n in (B + 1, B))
    function = functools.partial(paged_prefill_attention, scoring=Scoring(0.1))
    offsets, lens = tables
    rows = PagedRows(lens, _shape(B, 64, dtype=jnp.int32), offsets)
    return lower_for_h200(function, _shape(T, 4, 64), Pages(pages, pages), rows)


def test_prefills_of_any_size_share_a_kernel_and_keep_their_shapes():
    hashes = set()
    for T, B, P in [(128, 8, 500), (1024, 256, 700)]:
        text = _prefill(T, B, P)
        (call,) = [line for line in text.splitlines() if "kernel_hash" in line]
        hashes.add(re.search(r'kernel_hash = ("(?:[^"\\]|\\.)*")', call)[1])
        types = call.rsplit(" : ", 1)[1]
        assert types.startswith(f"(tensor<{T}x4x64xbf16>, tensor<{P}x16x2x64xbf16>")
        assert types.endswith(f"-> tensor<{T}x4x64xbf16>")
    assert len(hashes) == 1


def test_programs_that_decode_alike_lower_the_kernel_once(monkeypatch):
    made = []

    def launch(*args):
        made.append(args)
        return _launch(*args)

    _launch = decode._launch
    monkeypatch.setattr(decode, "_launch", launch)
    pages, ints = _shape(90, 16, 2, 64), functools.partial(_shape, dtype=jnp.int32)
    texts = []
    for scale in (0.1, 0.1, 0.2):
        function = functools.partial(decode.paged_decode_attention, scoring=Scoring(scale))
        rows = PagedRows(ints(8), ints(8, 64))
        texts.append(lower_for_h200(function, _shape(8, 4, 64), Pages(pages, pages), rows))
    assert texts[0] == texts[1] != texts[2]
    assert len(made) == 2


def test_a_kernel_refuses_arrays_that_it_was_not_built_for():
    built, out = (_shape(64, 8),), _shape(8, 8)
    for given in (jnp.zeros((65, 8)), jnp.zeros((8, 16))):
        with pytest.raises(ValueError, match="built for"):
            call_built_for(lambda *_: None, None, built, (given,), out, name="none")
