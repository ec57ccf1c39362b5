"""What Mosaic GPU is handed to compile: the GPU's code untouched, and little host code.

Lowering is enough to see it, so these run without a GPU and without its compiler.
"""

import re

import jax
import jax.numpy as jnp
import pytest

from jaxinfer.kernels.matmul.mosaic import medium
from jaxinfer.kernels.mosaic import quick_compile
from tests.kernels.h200_target import lower_for_h200


def _shape(*shape, dtype=jnp.bfloat16):
    return jax.ShapeDtypeStruct(shape, dtype)


def test_descriptors_are_copied_as_few_integers(monkeypatch):
    types = []
    join = quick_compile._join_descriptors

    def spy(module):
        join(module)
        types.extend(re.findall(r"llvm\.load .*-> (!llvm\.array<[^>]*>)", str(module)))

    monkeypatch.setattr(quick_compile, "_join_descriptors", spy)
    weights = (_shape(2048, 1024), _shape(1024, 1024), _shape(1024, 1024))
    lower_for_h200(medium.project, _shape(64, 1024), weights)
    # Rows, and each of three weights and of their outputs.
    assert types == ["!llvm.array<7 x i1024>"]


@pytest.mark.parametrize("other", ["i8", "!llvm.array<0 x i8>", "!llvm.array<100 x i8>"])
def test_memory_that_is_no_descriptors_keeps_its_type(other):
    assert quick_compile._joined(other) is None
