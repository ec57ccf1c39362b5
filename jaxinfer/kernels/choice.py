"""Chooses the implementation of attention, once for an engine, and gives the reason."""

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from jaxinfer.config import KVCacheDType

Backend = Literal["mosaic", "triton", "numba", "xla"]

_HEAD_DIMS = (64, 128)
_DTYPES = ("bfloat16", "float16")
_BLOCK_SIZES = (8, 16, 32, 64, 128, 256)
_MAX_GROUP_SIZE = 16
_CACHES: Mapping[Backend, tuple[KVCacheDType, ...]] = {
    "mosaic": ("auto", "fp8_e4m3"),
    "triton": ("auto",),
    "numba": ("auto", "int8"),
}
"""The formats of pages that each implementation reads; "xla" reads all."""


@dataclass(frozen=True)
class Ranking:
    """The implementations as measured on one kind of GPU, the fastest first, and their record."""

    order: tuple[Backend, ...]
    evidence: str


RANKINGS: Mapping[tuple[int, int], Ranking] = {
    (9, 0): Ranking(
        ("mosaic", "triton", "xla"), "20261122-080534-nvidia-h200-attention-backends.json"
    ),
}
"""Rankings by compute capability, measured by `scripts/kernel_bench.py --backends`."""

_UNMEASURED: tuple[Backend, ...] = ("mosaic", "triton", "xla")


def choose_backend(
    requested: Literal["auto", "mosaic", "triton", "numba", "xla"],
    *,
    head_dim: int,
    dtype: str,
    block_size: int,
    group_size: int,
    platform: str,
    compute_capability: tuple[int, int] | None,
    kv_cache_dtype: KVCacheDType = "auto",
) -> tuple[Backend, str]:
    """Choose the attention implementation of an engine, with the reason.

    Args:
        requested: "auto" or the name of an implementation.
        head_dim: D.
        dtype: name of the dtype of activations.
        block_size: S, tokens in a page.
        group_size: query heads that share a KV head.
        platform: platform of the devices: "cpu", "gpu".
        compute_capability: of an NVIDIA GPU, for example (9, 0); None elsewhere.
        kv_cache_dtype: of pages; "auto" is that of activations.

    Returns:
        The name, and the reason in a few words for the start-up report: the deciding fact, and for
        "auto" on a GPU the reason against each implementation that can't run.

    Raises:
        ValueError: `requested` can't run here; says why and lists what can.
    """
    model = _model_obstacle(head_dim, dtype, block_size, group_size)
    unread = {
        name: f"reads no {kv_cache_dtype} KV cache"
        for name, formats in _CACHES.items()
        if kv_cache_dtype not in formats
    }
    obstacles: dict[Backend, str | None] = {
        "mosaic": _mosaic_obstacle(platform, compute_capability) or unread.get("mosaic") or model,
        "triton": _triton_obstacle(platform, compute_capability) or unread.get("triton") or model,
        "numba": _numba_obstacle(platform, dtype) or unread.get("numba"),
        "xla": None,
    }
    cache = "" if kv_cache_dtype == "auto" else f" with {kv_cache_dtype} KV cache"
    served = f"{dtype}{cache}, head_dim {head_dim}, block_size {block_size}"
    if requested == "auto":
        return _fastest(obstacles, served, platform, compute_capability)
    obstacle = obstacles[requested]
    if obstacle is not None:
        supported = ", ".join(name for name, why in obstacles.items() if why is None)
        where = platform if compute_capability is None else _capability(compute_capability)
        raise ValueError(
            f"attention_backend={requested!r} {obstacle}; supported here ({served}, "
            f"{group_size} query heads per KV head, {where}): {supported}"
        )
    return requested, "requested"


def _fastest(
    obstacles: Mapping[Backend, str | None],
    served: str,
    platform: str,
    compute_capability: tuple[int, int] | None,
) -> tuple[Backend, str]:
    """The first in the device's ranking that can run."""
    if platform == "cpu":
        if why := obstacles["numba"]:
            return "xla", f"fastest that can run on a CPU for {served}; numba {why}"
        return "numba", f"fastest measured on CPUs for {served}"
    ranking = RANKINGS.get(compute_capability) if compute_capability is not None else None
    order = _UNMEASURED if ranking is None else ranking.order
    best: Backend = next(name for name in order if obstacles[name] is None)
    where = _capability(compute_capability)
    if ranking is None:
        reason = f"first that can run; nothing was measured on {where}"
    elif best == order[0]:
        reason = f"fastest measured on {where}"
    else:
        reason = f"fastest that can run on {where}"
    reason += f" for {served}"
    passed_over = [f"{name} {why}" for name in order if (why := obstacles[name]) is not None]
    return best, "; ".join([reason, *passed_over])


def _model_obstacle(head_dim: int, dtype: str, block_size: int, group_size: int) -> str | None:
    """The reason why no GPU kernel can serve this model, or None."""
    if head_dim not in _HEAD_DIMS:
        return f"needs head_dim 64 or 128, not {head_dim}"
    if dtype not in _DTYPES:
        return f"needs bfloat16 or float16, not {dtype}"
    if block_size not in _BLOCK_SIZES:
        return f"needs a block_size of {', '.join(map(str, _BLOCK_SIZES))}, not {block_size}"
    if group_size > _MAX_GROUP_SIZE:
        return f"needs at most {_MAX_GROUP_SIZE} query heads per KV head, not {group_size}"
    return None


def _mosaic_obstacle(platform: str, compute_capability: tuple[int, int] | None) -> str | None:
    # wgmma exists on compute capability 9.x alone: neither before Hopper nor after it.
    if platform != "gpu" or compute_capability is None or compute_capability[0] != 9:
        where = _where(platform, compute_capability)
        return f"needs a Hopper GPU (compute capability 9.x), not {where}"
    return None


def _triton_obstacle(platform: str, compute_capability: tuple[int, int] | None) -> str | None:
    if platform != "gpu" or compute_capability is None or compute_capability < (8, 0):
        where = _where(platform, compute_capability)
        return f"needs an NVIDIA GPU of compute capability 8.0 or higher, not {where}"
    if importlib.util.find_spec("jax_triton") is None:
        return "needs the package jax-triton (pip install 'jaxinfer[triton]')"
    return None


def _numba_obstacle(platform: str, dtype: str) -> str | None:
    if platform != "cpu":
        return f"needs a CPU, not {platform}"
    if dtype != "float32":
        return f"needs float32, not {dtype}"
    if importlib.util.find_spec("numba") is None:
        return "needs the package numba (pip install 'jaxinfer[cpu]')"
    return None


def compute_capability_of(device: Any) -> tuple[int, int] | None:
    """The compute capability of a `jax.Device`, such as (9, 0); None if it is no NVIDIA GPU."""
    capability = getattr(device, "compute_capability", None)
    if capability is None:
        return None
    major, minor = str(capability).split(".")
    return int(major), int(minor)


def _where(platform: str, compute_capability: tuple[int, int] | None) -> str:
    return platform if compute_capability is None else _dotted(compute_capability)


def _capability(compute_capability: tuple[int, int] | None) -> str:
    return f"compute capability {_dotted(compute_capability) if compute_capability else 'unknown'}"


def _dotted(compute_capability: tuple[int, int]) -> str:
    return ".".join(map(str, compute_capability))
