"""What a caller wants to read and change of an engine's activations, as its plan takes it."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from jaxinfer.capture import Capture, check_layers
from jaxinfer.config import EngineConfig
from jaxinfer.kernels.collectives.tensor_axis import MeshAxes
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.intervention import Intervention
from jaxinfer.serving.programs.buckets import Buckets
from jaxinfer.serving.programs.inspected_buckets import inspected
from jaxinfer.serving.programs.inspected_layers import INTERVENED, Change, InspectedLayers, OutputOf
from jaxinfer.serving.programs.layer_loop import LayerLoop

_MODULES: Mapping[str, tuple[str, str, str]] = {
    "attention_out": ("attention", "self_attn", "o_proj"),
    "mlp_out": ("mlp", "mlp", "down_proj"),
}
"""For what is read inside a layer, the tap, the module and its last product."""


@dataclasses.dataclass(frozen=True)
class Inspection:
    """A capture, an intervention, both, or neither, which leaves an engine as it is.

    Attributes:
        capture: what is kept of every token.
        intervention: what is changed of tokens of requests that ask for it.
    """

    capture: Capture | None = None
    intervention: Intervention | None = None

    @property
    def is_wanted(self) -> bool:
        """Whether there is either."""
        return self.capture is not None or self.intervention is not None

    def check(self, config: EngineConfig, model: ModelConfig, *, num_processes: int) -> None:
        """Refuse what an engine can't have.

        Raises:
            ValueError: a layer is not there, or something else of the engine excludes this.
        """
        if not self.is_wanted:
            return
        name = "intervention" if self.capture is None else "capture"
        for other, is_there in (
            ("speculative_config", config.speculative_config is not None),
            ("expert_statistics", config.expert_statistics),
            ("enable_lora", config.enable_lora),
            ('runner="pooling"', config.runner == "pooling"),
            ("pipeline_parallel_size", config.pipeline_parallel_size > 1),
            ("several processes", num_processes > 1),
        ):
            if is_there:
                raise ValueError(f"{name} does not go with {other}; leave one of them out")
        for name, part in (("capture", self.capture), ("intervention", self.intervention)):
            if part is not None:
                check_layers(name, layers_of(part, model), model.num_hidden_layers)
        if self.capture is not None and self.capture.what == "mlp_out":
            experts = () if model.experts is None else model.experts.layers(model.num_hidden_layers)
            if routed := sorted({*experts}.intersection(layers_of(self.capture, model))):
                raise ValueError(
                    f"capture: the MLP of layer {routed[0]} is one of experts, whose output is not "
                    'kept by itself; take what="residual" or "attention_out"'
                )

    def loop(
        self, plain: LayerLoop, model: ModelConfig, dtype: str, axis: MeshAxes | None
    ) -> LayerLoop:
        """What passes tokens through the layers.

        Args:
            plain: without either.
            model: the model's shape.
            dtype: of activations.
            axis: of tensor parallelism; None on one device.

        Raises:
            TypeError: the intervention returns no array, or another dtype.
            ValueError: it returns another shape, or fails while it is traced.
        """
        if not self.is_wanted:
            return plain
        change = None
        if (given := self.intervention) is not None:
            leaves, structure = jax.tree.flatten(given.state)
            shapes = tuple(jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves)
            change = Change(given.function, layers_of(given, model), shapes, structure)
            check_change(change, model.hidden_size, dtype)
        captured, inside = (), None
        if self.capture is not None:
            captured = layers_of(self.capture, model)
            if (names := _MODULES.get(self.capture.what)) is not None:
                inside = OutputOf(*names, model.quantization, axis)
        return InspectedLayers(captured, model.hidden_size, change, inside)

    def buckets(self, plain: Buckets) -> Buckets:
        """The shapes of an engine, given those without either."""
        if not self.is_wanted:
            return plain
        extra = () if self.intervention is None else (INTERVENED,)
        return inspected(plain, extra=extra, captured=self.capture and self.capture.what)

    def remedy(self, plain: str, config: EngineConfig) -> str:
        """What helps against too small a cache, given what else does."""
        if self.capture is None or config.num_kv_blocks is not None:
            return plain
        return f"{plain}, or capture fewer layers"

    def share(self, model: ModelConfig) -> str:
        """What capture takes of the KV cache, to end an error about its size; "" without."""
        if self.capture is None:
            return ""
        kept = len(layers_of(self.capture, model)) * model.hidden_size
        plain = 2 * model.num_hidden_layers * model.num_key_value_heads * model.head_dim
        less = "leave capture out" if self.capture.what == "logits" else "capture fewer layers"
        return (
            f", or {less}: capture keeps {kept:,} numbers of a token beside {plain:,} of keys and "
            "values"
        )


NO_INSPECTION = Inspection()


def read_inspection(capture: Any, intervention: Any) -> Inspection:
    """Check what a caller gave, of which an intervention may be its function alone.

    Raises:
        TypeError: one has the wrong type.
    """
    if capture is not None and not isinstance(capture, Capture):
        kind = type(capture).__name__
        raise TypeError(f"capture must be a Capture, got {kind}; write Capture(...)")
    if intervention is not None and not isinstance(intervention, Intervention):
        intervention = Intervention(intervention)
    return Inspection(capture, intervention)


def check_change(change: Change, width: int, dtype: str) -> None:
    """Trace an intervention on abstract arrays for each layer, without computing anything.

    Raises:
        TypeError: it returns no array, or another dtype.
        ValueError: it returns another shape, or fails while it is traced.
    """
    residual = jax.ShapeDtypeStruct((1, width), jnp.dtype(dtype))
    state = jax.tree.unflatten(change.structure, change.leaves)
    expected = f"{residual.dtype} of shape {residual.shape}"
    for layer in change.layers:
        where = f"intervention at layer {layer}"
        try:
            with jax.numpy_rank_promotion("allow"):
                result = jax.eval_shape(lambda x, s: change.function(layer, x, s), residual, state)  # noqa: B023
        except Exception as error:
            said = str(error).partition("\n")[0]
            raise ValueError(
                f"{where} failed when it was traced: {type(error).__name__}: {said}"
            ) from error
        if not isinstance(result, jax.ShapeDtypeStruct):
            kind = type(result).__name__
            raise TypeError(f"{where} must return one array, {expected}, got {kind}")
        if result.shape != residual.shape:
            raise ValueError(f"{where} must return {expected}, got shape {result.shape}")
        if result.dtype != residual.dtype:
            raise TypeError(
                f"{where} must return {expected}, got {result.dtype}; end it with "
                ".astype(residual.dtype)"
            )


def layers_of(part: Capture | Intervention, model: ModelConfig) -> tuple[int, ...]:
    """The layers that a capture reads, or an intervention changes."""
    if isinstance(part, Capture) and part.what == "logits":
        return (model.num_hidden_layers - 1,)
    if part.layers is None:
        return tuple(range(model.num_hidden_layers))
    assert isinstance(part.layers, tuple)  # made so at construction
    return part.layers
