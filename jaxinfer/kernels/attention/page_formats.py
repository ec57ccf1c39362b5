"""The formats that pages hold keys and values in, as XLA writes and reads them.

Pages of the activations' dtype hold them as they are, float8_e4m3fn ones rounded to it, and int8
ones as integers with a scale for each token and head.
"""

from jax import Array
from jaxtyping import Float

from jaxinfer.kernels.attention.pages import Pages
from jaxinfer.kernels.fp8 import FP8, saturated
from jaxinfer.kernels.int8 import dequantize, quantize


def rows_of(keys: Float[Array, "T K D"], values: Float[Array, "T K D"], pages: Pages) -> Pages:
    """Keys and values of tokens in the form of these pages, a row for each token."""
    if pages.k_scale is not None:
        (k, k_scale), (v, v_scale) = quantize(keys), quantize(values)
        return Pages(k, v, k_scale, v_scale)
    if pages.k.dtype == FP8:
        return Pages(saturated(keys).astype(FP8), saturated(values).astype(FP8))
    return Pages(keys, values)


def read(rows: Pages) -> tuple[Float[Array, "*rows K D"], Float[Array, "*rows K D"]]:
    """Keys and values of rows of pages; of formats of eight bits in float32."""
    if rows.k_scale is not None:
        return dequantize(rows.k, rows.k_scale), dequantize(rows.v, rows.v_scale)
    if rows.k.dtype == FP8:
        return rows.k.astype("float32"), rows.v.astype("float32")
    return rows.k, rows.v
