"""Keeps the residual stream as it enters some of the layers, for what reads it besides."""

from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxinfer.kernels.matmul.op import ResidualStream
from jaxinfer.model.layer_kind import LayerKind
from jaxinfer.model.layers.context import LayerStep

StepOf = Callable[[int, LayerKind], LayerStep]


def watching(step_of: StepOf, layers: Collection[int], seen: dict[int, jax.Array]) -> StepOf:
    """`step_of` of a loop over layers, with layers that tell what they read.

    Args:
        layers: indices of the layers to watch.
        seen: receives the residual stream ``[..., E]`` of all tokens, by the layer's index.
    """

    def watched_step_of(index: int, kind: LayerKind) -> LayerStep:
        step = step_of(index, kind)
        if index not in layers:
            return step

        def watched(
            layer: Any, pages: Any, residuals: Sequence[ResidualStream], *others: Any
        ) -> tuple[Any, Sequence[ResidualStream]]:
            streams = [residual.summed() for residual in residuals]
            stream = streams[0] if len(streams) == 1 else jnp.concatenate(streams)
            # Behind the barrier one array is kept, and not all that it is a sum of.
            seen[index] = jax.lax.optimization_barrier(stream)
            return step(layer, pages, residuals, *others)

        return watched

    return watched_step_of
