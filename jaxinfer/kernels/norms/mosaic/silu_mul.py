"""SwiGLU's elementwise half, `silu(gate) * up`, at the speed of the memory.

A thread loads 16 bytes of each input; nothing else. (Several such vectors a thread were slower.)
Rounds as `jaxinfer.kernels.matmul.op` does: silu is rounded before the product is.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float

from jaxinfer.kernels.mosaic.rows import load_global, store_anyhow

_VECTOR = 8
_BLOCK = 128 * _VECTOR


def silu_mul(gate: Float[Array, "T F"], up: Float[Array, "T F"]) -> Float[Array, "T F"]:
    """`silu(gate) * up` (https://arxiv.org/abs/2002.05202), elementwise, of bfloat16 or float16.

    Raises:
        ValueError: `supports` says no.
    """
    if not supports(gate.size, gate.dtype):
        raise ValueError(
            f"gate and up must be bfloat16 or float16 and hold a multiple of {_BLOCK} elements;"
            f" got {gate.dtype}{gate.shape}"
        )
    blocks = (gate.size // _BLOCK, _BLOCK)
    kernel = plgpu.kernel(
        _block,
        out_type=jax.ShapeDtypeStruct(blocks, gate.dtype),
        grid=blocks[:1],
        grid_names=("block",),
        # Nothing is both read and written.
        compiler_params=plgpu.CompilerParams(approx_math=True, unsafe_no_auto_barriers=True),
        kernel_name="silu_mul",
    )
    return kernel(gate.reshape(blocks), up.reshape(blocks)).reshape(gate.shape)


def supports(size: int, dtype: jax.typing.DTypeLike) -> bool:
    """True if arrays of `size` elements of this dtype can be multiplied here."""
    return size % _BLOCK == 0 and jnp.dtype(dtype) in (jnp.bfloat16, jnp.float16)


def _block(gate, up, out):
    block = lax.axis_index("block")
    layout = plgpu.Layout.TILED(
        plgpu.Tiling(((_BLOCK,), (32 * _VECTOR,), (_VECTOR,))),
        warp_dims=(-3,),
        lane_dims=(-2,),
        vector_dim=-1,
    )
    opening, value = (load_global(ref.at[block], layout) for ref in (gate, up))
    wide = opening.astype(jnp.float32)
    silu = (wide / (1.0 + jnp.exp(-wide))).astype(out.dtype).astype(jnp.float32)
    store_anyhow(out.at[block], (silu * value.astype(jnp.float32)).astype(out.dtype))
