"""Run by test_triton.py in a process of its own: the Triton programs on CPU, in its interpreter.

Triton reads TRITON_INTERPRET when it is imported, and interprets torch tensors.
"""

import os
import sys

os.environ["TRITON_INTERPRET"] = "1"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np
import torch

from jaxinfer.kernels.attention.mosaic.work_list import work_list
from jaxinfer.kernels.attention.triton.kernels import decode_kernel, prefill_kernel
from tests.kernels.attention import attention_cases

# One operation at a time, each would be compiled by itself.
_work_list = jax.jit(work_list, static_argnums=(0, 3, 4))


def _tensor(array):
    array = np.asarray(array)
    return torch.tensor(array.astype(np.float32) if array.dtype.kind == "f" else array)


def _attention(q, pages, cu, lens, tables, *, scale, window, max_query_len, splits):
    (T, H, D), (S, K), W = q.shape, pages.k.shape[1:3], tables.shape[1]
    args = [_tensor(x) for x in (q, pages.k, pages.v)]
    sizes = {"H": H, "K": K, "D": D, "S": S, "W": W, "WINDOW": window or 0}
    scales = {"qk_scale": scale * 1.4426950408889634, "BLOCK_N": 64}
    if max_query_len != 1:
        lines, count = _work_list(T, cu, lens, 64, window)
        out = torch.full((T, H, D), torch.nan)
        work = [_tensor(x) for x in (tables, lines, count)]
        prefill_kernel[(H * lines.shape[0],)](*args, *work, out, BLOCK_M=64, **sizes, **scales)
        return jnp.asarray(out.numpy())
    out, sums = torch.full((splits, T, H, D), torch.nan), torch.full((splits, T, H), torch.nan)
    rest = [_tensor(lens), _tensor(tables), out, sums]
    decode_kernel[(T, K, splits)](*args, *rest, BLOCK_G=16, SPLITS=splits, **sizes, **scales)
    weights = torch.exp2(sums - sums.max(0).values.clamp(min=-1e30))
    out = (out * weights[..., None]).sum(0) / weights.sum(0).clamp(min=1e-30)[..., None]
    return jnp.asarray(out.numpy())


def main() -> None:
    """Checks the shared test body's cases of moderate size, decoding with 1 and 3 splits."""
    wanted = sys.argv[1:]
    cases = [*attention_cases.decode_cases(), *attention_cases.prefill_cases()]
    for case in cases:
        if case.name not in wanted:
            continue
        for splits in (1, 3) if case.decode else (1,):

            def attention(*args, splits=splits, **options):
                return _attention(*args, splits=splits, **options)

            attention_cases.check(attention, case, jnp.float32)
            print("ok", case.name, splits, flush=True)


if __name__ == "__main__":
    main()
