"""SwiGLU's elementwise half, `silu(gate) * up`, at the speed of the memory.

Vectors of 16 bytes a thread, several in flight; nothing else. Roundings are those of
`jaxinfer.model.qwen3.gated_mlp`: silu is computed in fp32 and rounded before the product is.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float

from jaxinfer.kernels.mosaic.rows import load_global, store_anyhow

_THREADS = 128
_VECTOR = 8
_VECTORS = 4  # a thread's, of each input, where there is work enough to fill the chip
_MANY = 4 * 132 * _THREADS * _VECTOR


def silu_mul(
    gate: Float[Array, "T F"], up: Float[Array, "T F"], *, vectors: int | None = None
) -> Float[Array, "T F"]:
    """`silu(gate) * up` (https://arxiv.org/abs/2002.05202), elementwise.

    Args:
        gate: bfloat16 or float16.
        up: in the same dtype.
        vectors: of 8 elements that a thread loads of each input at once; None chooses.

    Returns:
        The product, in gate's dtype.

    Raises:
        ValueError: `supports` says no.
    """
    if not supports(gate.shape, gate.dtype):
        raise ValueError(
            "gate and up must be bfloat16 or float16 and hold a multiple of 1024 elements;"
            f" got {gate.dtype}{gate.shape}"
        )
    size = gate.size
    unit = _THREADS * _VECTOR
    if vectors is None:
        vectors = _VECTORS if size > _MANY else 1
    vectors = next(n for n in range(vectors, 0, -1) if size % (unit * n) == 0)
    block = unit * vectors
    kernel = plgpu.kernel(
        _block,
        out_type=jax.ShapeDtypeStruct((size // block, block), gate.dtype),
        grid=(size // block,),
        grid_names=("block",),
        # Nothing is both read and written.
        compiler_params=plgpu.CompilerParams(approx_math=True, unsafe_no_auto_barriers=True),
        kernel_name="silu_mul",
    )
    flat = (a.reshape(size // block, block) for a in (gate, up))
    return kernel(*flat).reshape(gate.shape)


def supports(shape: tuple[int, ...], dtype: jax.typing.DTypeLike) -> bool:
    """Whether arrays of this shape and dtype can be multiplied here."""
    size = 1
    for n in shape:
        size *= n
    whole = size > 0 and size % (_THREADS * _VECTOR) == 0
    return whole and jnp.dtype(dtype) in (jnp.bfloat16, jnp.float16)


def _block(gate, up, out):
    block = lax.axis_index("block")
    layout = plgpu.Layout.TILED(
        plgpu.Tiling(((_THREADS * _VECTOR,), (32 * _VECTOR,), (_VECTOR,))),
        warp_dims=(-3,),
        lane_dims=(-2,),
        vector_dim=-1,
    )
    narrow_gate, narrow_up = (load_global(ref.at[block], layout) for ref in (gate, up))
    wide = narrow_gate.astype(jnp.float32)
    silu = (wide / (1.0 + jnp.exp(-wide))).astype(out.dtype).astype(jnp.float32)
    store_anyhow(out.at[block], (silu * narrow_up.astype(jnp.float32)).astype(out.dtype))
