"""A loop over a model's layers whose projections have adapters, each token's own."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from jaxinfer.kernels.matmul.adapted import adapted_layer, own_ranks
from jaxinfer.kernels.matmul.op import ResidualStream
from jaxinfer.kernels.policy import Kernels
from jaxinfer.model.adapters.device_slots import ADAPTED, ADAPTERS
from jaxinfer.model.layer_kind import LayerKind
from jaxinfer.model.layers.context import LayerStep, Params, Parts
from jaxinfer.model.layers.watching import StepOf
from jaxinfer.serving.programs.step_inputs import StepInputs
from jaxinfer.serving.programs.steps import EVERY_LAYER
from jaxinfer.serving.slots.adapter_datum import SLOT_OF_TOKEN

_BEFORE_ATTENTION = ("q_proj", "k_proj", "v_proj")


@dataclass(frozen=True)
class AdaptedLayers:
    """A `LayerLoop` that adds adapters to the layers' projections.

    Attributes:
        num_slots: L, adapters on the devices.
        ranks: r, of each slot.
        kernels: of the projections without adapters.
    """

    num_slots: int
    ranks: int
    kernels: Kernels
    num_probed = 2
    runs_user_code = False

    def beside(self, dtype: DTypeLike) -> tuple[Any, ...]:
        """Nothing."""
        return ()

    def layer(self, step: Callable[..., Any]) -> LayerStep:
        """As without adapters."""
        return EVERY_LAYER.layer(step)

    def __call__(
        self,
        params: Params,
        kinds: Sequence[LayerKind],
        kv: Sequence[Any],
        parts: Parts,
        step_of: StepOf,
        *,
        whole: StepInputs,
        last_rows: jax.Array | None,
    ) -> tuple[tuple[Any, ...], jax.Array]:
        """Every layer in turn, on all tokens at once."""
        layers, adapters, last = params["model"]["layers"], params[ADAPTERS], len(kinds) - 1
        slots = whole.of_tokens[SLOT_OF_TOKEN.name]
        own = dict.fromkeys((name for _, name in ADAPTED), self._own(slots))
        adapted = {
            str(i): adapted_layer(layers[str(i)], adapters[str(i)], own, self.kernels)
            for i in range(last)
        }
        if last_rows is not None:  # each row is one query from attention on
            wanted = self._own(slots.at[last_rows].get(mode="clip"))
            own = {name: own[name] if name in _BEFORE_ATTENTION else wanted for name in own}
        end = str(last)
        adapted[end] = adapted_layer(layers[end], adapters[end], own, self.kernels)
        model: Mapping[str, Any] = {**params["model"], "layers": adapted}
        return EVERY_LAYER(
            {**params, "model": model},
            kinds,
            kv,
            _in_one(parts, whole),
            step_of,
            whole=whole,
            last_rows=last_rows,
        )

    def _own(self, slots: jax.Array) -> jax.Array:
        return own_ranks(slots, self.num_slots, self.ranks)


def _in_one(parts: Parts, whole: StepInputs) -> Parts:
    """All tokens in one part: two-batch overlap knows no adapters."""
    if len(parts.tokens) == 1:
        return parts
    stream = jnp.concatenate([residual.summed() for residual in parts.residuals])
    rotations = jax.tree.map(lambda *each: jnp.concatenate(each), *parts.rotations)
    return Parts([ResidualStream(stream)], [rotations], [whole])
