"""Descriptions of models' parameters, which Flax traces once a process, not once an engine."""

import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax.typing import DTypeLike

from jaxinfer.model import modules
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.families.table import family_of


def remember_trees() -> None:
    """Let `modules.abstract_params` trace a model's modules the first time alone.

    Each engine and each load of weights asks for the tree again, for 22 ms of a processor. It
    depends on the config, the dtype and the family's layers, of which a test may register others.
    """
    describe_anew = modules._described

    @functools.cache
    def leaves(config: ModelConfig, dtype: jnp.dtype, _layer_kinds: object) -> dict[str, Any]:
        return describe_anew(config, dtype, lambda leaf: leaf)

    def described(
        config: ModelConfig, dtype: DTypeLike, describe: Callable[[Any], Any]
    ) -> dict[str, Any]:
        layer_kinds = family_of(config.model_type).layer_kinds
        return _each(leaves(config, jnp.dtype(dtype), layer_kinds), describe)

    modules._described = described


def _each(node: Any, describe: Callable[[Any], Any]) -> Any:
    if not isinstance(node, dict):
        return describe(node)
    return {name: _each(child, describe) for name, child in node.items()}
