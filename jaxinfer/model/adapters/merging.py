"""Merges an adapter of PEFT into the weights that it was trained beside."""

import functools
from collections.abc import Callable
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from jaxinfer.checks import show
from jaxinfer.errors import ModelLoadError
from jaxinfer.model.adapters.matrices import Matrices, Target
from jaxinfer.model.adapters.peft_files import read_peft
from jaxinfer.model.adapters.shape import check_fits, is_finite
from jaxinfer.model.architecture import abstract_params
from jaxinfer.model.checkpoint.parameter_names import flatten
from jaxinfer.model.config import ModelConfig

Merge = Callable[[np.ndarray], np.ndarray]


def read_merges(directory: Path, config: ModelConfig, dtype: DTypeLike) -> dict[str, Merge]:
    """What makes each weight that an adapter changes into the merged one.

    Args:
        directory: the adapter's, as PEFT saves it.
        config: of the model, with plain weights.
        dtype: of merged weights.

    Returns:
        By path in the tree of parameters: a function of a weight ``[O, I]`` as it is stored. It
        returns ``weight + scale * b @ a`` of `dtype`, computed in float32 and rounded once.

    Raises:
        ModelLoadError: as `read_peft`; or the adapter is of another model, or holds NaN or
            infinity. One line that names the projection.
    """
    found, name = read_peft(directory), str(directory)
    weights = {path for path, _ in flatten(abstract_params(config, dtype))}
    if not found:
        raise ModelLoadError(f"adapter {show(name)} changes no projection of any layer")
    for target, matrices in found.items():
        try:
            check_fits(name, target, matrices, config)
        except ValueError as error:
            raise ModelLoadError(str(error)) from None
        if f"model.{target}" not in weights:
            raise ModelLoadError(
                f"adapter {show(name)}: {target} is experts in this model, which adapters can't "
                "be merged into"
            )
        if not (is_finite(matrices.a) and is_finite(matrices.b)):
            raise ModelLoadError(f"adapter {show(name)}: {target} holds NaN or infinity")
    return {
        f"model.{target}": functools.partial(
            _merged, f"adapter {show(name)}", target, matrices, jnp.dtype(dtype)
        )
        for target, matrices in found.items()
    }


def _merged(
    adapter: str, target: Target, matrices: Matrices, dtype: np.dtype, weight: np.ndarray
) -> np.ndarray:
    a, b = matrices.a.astype(np.float32), matrices.b.astype(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        merged = (b * np.float32(matrices.scale)) @ a
        merged += weight.astype(np.float32)
        merged = merged.astype(dtype)
    if not is_finite(merged) and is_finite(weight):
        raise ModelLoadError(f"{adapter} makes the weight of {target} NaN or infinity in {dtype}")
    return merged
