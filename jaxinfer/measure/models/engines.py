"""Builds the engine that a measurement runs on: a user's model, or random weights of a shape."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxinfer import LLM


def build_engine(model_shape: str | None, arguments: dict[str, Any]) -> "LLM":
    """Start an engine for measuring.

    Args:
        model_shape: a name of `SERVED_SHAPES`, filled with random weights made on the device, or
            None to load what `arguments` name.
        arguments: engine arguments as `LLM` takes them.
    """
    from jaxinfer import LLM

    if model_shape is None:
        return LLM(**arguments)
    return LLM(**random_weights(model_shape, arguments), **arguments)


def random_weights(model_shape: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments of `LLM` for a model of random weights: params, config and mesh.

    Args:
        model_shape: a name of `SERVED_SHAPES`.
        arguments: engine arguments as `LLM` takes them.
    """
    import jax

    from jaxinfer.config import EngineConfig
    from jaxinfer.measure.models.random_params import random_params
    from jaxinfer.model.sharding import make_mesh
    from jaxinfer.planning.named_shapes import shape_config
    from jaxinfer.serving.replicas.meshes import make_replica_mesh

    settings = EngineConfig(**arguments)
    config = shape_config(model_shape)
    # On a CPU, speed is measured in float32, the dtype served there.
    dtype = settings.resolve_dtype(config.dtype, jax.default_backend())
    replicas, devices_each = settings.data_parallel_size, settings.tensor_parallel_size
    mesh = make_mesh(devices_each) if replicas == 1 else make_replica_mesh(replicas, devices_each)
    return {"params": random_params(config, dtype, mesh), "config": config, "mesh": mesh}
