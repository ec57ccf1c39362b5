"""Builds the engine that a measurement runs on: a user's model, or random weights of a shape.

Random weights are made on the device: no download is needed.
"""

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from jaxinfer.config import EngineConfig
from jaxinfer.kernels.fp8 import FP8, saturated
from jaxinfer.model.architecture import abstract_params
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.quantized.quantization import SCALE, with_scheme
from jaxinfer.model.sharding import ShardingRules, make_mesh, with_contexts
from jaxinfer.model.stages.staged_params import make_pipeline_mesh
from jaxinfer.planning.named_shapes import shape_config
from jaxinfer.serving.replicas.meshes import make_replica_mesh

if TYPE_CHECKING:
    from jaxinfer import LLM

_STDDEV = 0.02
_CODES_STDDEV = 64


def build_engine(
    model_shape: str | None, arguments: dict[str, Any], router_skew: float = 0.0
) -> "LLM":
    """Start an engine for measuring.

    Args:
        model_shape: a name of `SERVED_SHAPES`, filled with random weights made on the device, or
            None to load what `arguments` name.
        router_skew: see `random_weights`.
    """
    from jaxinfer import LLM

    if model_shape is None:
        if router_skew:
            raise ValueError("router_skew is of random weights; name a shape, or leave it out")
        return LLM(**arguments)
    return LLM(**{**arguments, **random_weights(model_shape, arguments, router_skew)})


def random_weights(
    model_shape: str, arguments: dict[str, Any], router_skew: float = 0.0
) -> dict[str, Any]:
    """The arguments of `LLM` for a model of random weights: params, config and mesh.

    Experts in `fp8` are made as codes, with no plain ones before: then no `quantization` is left to
    do.

    Args:
        router_skew: deviation of the logarithm of an expert's length in its router, by which some
            experts get more tokens than others; random weights route almost evenly.
    """
    settings = EngineConfig(**arguments)
    config, done = shape_config(model_shape), {}
    if config.experts is not None and settings.quantization is not None:
        config, done = with_scheme(config, settings.quantization), {"quantization": None}
    # On a CPU, speed is measured in float32, the dtype served there.
    dtype = settings.resolve_dtype(config.dtype, jax.default_backend())
    replicas, contexts = settings.data_parallel_size, settings.context_parallel_size
    devices_each = settings.tensor_parallel_size
    if (stages := settings.pipeline_parallel_size) > 1:  # the engine takes the same devices itself
        params = random_params(config, dtype, make_pipeline_mesh(stages, devices_each))
        if router_skew:
            skew_routers(params, router_skew)
        return {"params": params, "config": config, **done}
    if replicas == 1:
        mesh, _ = with_contexts(make_mesh(devices_each * contexts), ShardingRules(), contexts)
    else:
        mesh = make_replica_mesh(replicas, devices_each)
    params = random_params(config, dtype, mesh)
    if router_skew:
        skew_routers(params, router_skew)
    return {"params": params, "config": config, "mesh": mesh, **done}


def skew_routers(params: dict[str, Any], deviation: float) -> None:
    """Scale the rows of every router."""
    layers = params["model"]["layers"].values()
    for index, layer in enumerate(each for each in layers if "experts" in each["mlp"]):
        router = layer["mlp"]["gate"]
        lengths = jax.random.normal(jax.random.key(index), router.shape[:1])
        scales = jnp.exp(deviation * lengths)[:, None].astype(router.dtype)
        layer["mlp"]["gate"] = jax.device_put(router * scales, router.sharding)


def random_params(config: ModelConfig, dtype: str, mesh: Mesh, seed: int = 0) -> dict[str, Any]:
    """Parameters sharded as the engine's: normal matrices of deviation 0.02, norms 1, biases 0.

    Weights in float8_e4m3fn are codes of deviation 64 with scales that make 0.02 of it.

    Each leaf is its own small program, compiled once per shape: a single one for a whole model
    takes longer to compile than the benchmark to run, and holds float32 temporaries of it all.
    """
    described = abstract_params(config, dtype, mesh)
    leaves, structure = jax.tree_util.tree_flatten_with_path(described)
    keys = jax.random.split(jax.random.key(seed), len(leaves))
    values = [_leaf(path, leaf, key) for (path, leaf), key in zip(leaves, keys, strict=True)]
    return jax.tree_util.tree_unflatten(structure, values)


def _leaf(path: tuple[Any, ...], leaf: jax.ShapeDtypeStruct, key: jax.Array) -> jax.Array:
    if path[-1].key == SCALE:
        return jnp.full(leaf.shape, _STDDEV / _CODES_STDDEV, leaf.dtype, device=leaf.sharding)
    if len(leaf.shape) > 1:
        return _NORMAL(key, leaf.shape, leaf.dtype, leaf.sharding)
    fill = 0 if path[-1].key.endswith("_bias") else 1
    return jnp.full(leaf.shape, fill, leaf.dtype, device=leaf.sharding)


def _normal(key: jax.Array, shape: tuple[int, ...], dtype: Any, sharding: Any) -> jax.Array:
    if dtype == FP8:
        codes = _CODES_STDDEV * jax.random.normal(key, shape, jnp.bfloat16)
        return jax.lax.with_sharding_constraint(saturated(codes).astype(dtype), sharding)
    values = _STDDEV * jax.random.normal(key, shape, dtype)
    return jax.lax.with_sharding_constraint(values, sharding)


_NORMAL = jax.jit(_normal, static_argnums=(1, 2, 3))
