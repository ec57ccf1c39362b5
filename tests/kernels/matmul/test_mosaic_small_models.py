"""The products of Qwen3's layers by the small kernels: right on a GPU, one launch each."""

import jax
import jax.numpy as jnp
import pytest

from jaxinfer.kernels.matmul.mosaic import small
from tests.kernels.h200_target import compile_for_h200, needs_plugin
from tests.kernels.matmul.small_products import check, check_added

# E, query features, key features, F.
_LAYERS = {
    "0.6B": (1024, 2048, 1024, 3072),
    "1.7B": (2048, 2048, 1024, 6144),
    "4B": (2560, 4096, 1024, 9728),
    "8B": (4096, 4096, 1024, 12288),
}


# Every model and every number of rows once, the largest products with the most rows.
@pytest.mark.gpu
@pytest.mark.parametrize(("model", "B"), [("0.6B", 2), ("1.7B", 16), ("4B", 8), ("8B", 16)])
def test_a_layers_products_match_fp64(model, B):
    E, Q, K, F = _LAYERS[model]
    check(B, E, (Q, K, K), None)
    check(B, E, (F,), None)
    check_added(B, Q, E, None)
    check_added(B, F, E, None)


def _shape(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16)


@needs_plugin
@pytest.mark.parametrize(("model", "B"), [("0.6B", 2), ("4B", 8), ("8B", 16)])
def test_a_layers_products_are_one_kernel_each(model, B):
    def layer(x, norm, q, k, v, o, gate, up, down):
        heads = small.norm_project(x, norm, (q, k, v), eps=1e-6)
        x = small.project_add(heads[0], o, x)
        inner = small.norm_gated(x, norm, gate, up, eps=1e-6)
        return heads[1:], small.project_add(inner, down, x)

    E, Q, K, F = _LAYERS[model]
    attention = (_shape(Q, E), _shape(K, E), _shape(K, E), _shape(E, Q))
    mlp = (_shape(F, E), _shape(F, E), _shape(E, F))
    compiled = compile_for_h200(layer, _shape(B, E), _shape(E), *attention, *mlp)
    assert compiled.as_text().count('custom_call_target="mosaic_gpu') == 4
    assert "fusion(" not in compiled.as_text()
