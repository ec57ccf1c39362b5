"""Random weights of a published model's shape, made on the device: no download is needed."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from jaxinfer.model.architecture import abstract_params
from jaxinfer.model.config import ModelConfig

_STDDEV = 0.02


def random_params(config: ModelConfig, dtype: str, mesh: Mesh, seed: int = 0) -> dict[str, Any]:
    """Parameters whose matrices are normal with deviation 0.02, norms one and biases zero.

    Each leaf is its own small program, compiled once per shape: a single one for a whole model
    takes longer to compile than the benchmark to run, and holds float32 temporaries of it all.

    Args:
        config: the model's shape.
        dtype: of every leaf.
        mesh: leaves get the engine's shardings on it.
        seed: of the values.
    """
    described = abstract_params(config, dtype, mesh)
    leaves, structure = jax.tree_util.tree_flatten_with_path(described)
    keys = jax.random.split(jax.random.key(seed), len(leaves))
    values = [_leaf(path, leaf, key) for (path, leaf), key in zip(leaves, keys, strict=True)]
    return jax.tree_util.tree_unflatten(structure, values)


def _leaf(path: tuple[Any, ...], leaf: jax.ShapeDtypeStruct, key: jax.Array) -> jax.Array:
    if len(leaf.shape) > 1:
        return _NORMAL(key, leaf.shape, leaf.dtype, leaf.sharding)
    fill = 0 if path[-1].key.endswith("_bias") else 1
    return jnp.full(leaf.shape, fill, leaf.dtype, device=leaf.sharding)


def _normal(key: jax.Array, shape: tuple[int, ...], dtype: Any, sharding: Any) -> jax.Array:
    values = _STDDEV * jax.random.normal(key, shape, dtype)
    return jax.lax.with_sharding_constraint(values, sharding)


_NORMAL = jax.jit(_normal, static_argnums=(1, 2, 3))
