"""A loop over a model's layers whose projections have adapters, each token's own."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from jaxinfer.kernels.matmul.adapted import Owned, adapted_layer
from jaxinfer.kernels.matmul.op import ResidualStream
from jaxinfer.kernels.policy import Kernels
from jaxinfer.model.adapters.device_slots import ADAPTERS, rank_owners
from jaxinfer.model.adapters.groups import GROUPS
from jaxinfer.model.layer_kind import LayerKind
from jaxinfer.model.layers.context import LayerStep, Params, Parts
from jaxinfer.model.layers.watching import StepOf
from jaxinfer.serving.programs.layer_loop import LayerLoop
from jaxinfer.serving.programs.step_inputs import StepInputs
from jaxinfer.serving.programs.steps import EVERY_LAYER
from jaxinfer.serving.slots.adapter_datum import SLOT_OF_TOKEN

_BEFORE_ATTENTION = "qkv"


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
        """Every layer in turn, on all tokens at once; in steps without adapters as plain ones."""
        if SLOT_OF_TOKEN.name not in whole.of_tokens:
            options = {"whole": whole, "last_rows": last_rows}
            return EVERY_LAYER(params, kinds, kv, parts, step_of, **options)
        layers, last = params["model"]["layers"], len(kinds) - 1
        adapters, counts = params[ADAPTERS]["layers"], params[ADAPTERS]["counts"]
        slots = whole.of_tokens[SLOT_OF_TOKEN.name]
        owned = self._owned(slots, counts)
        adapted = {
            str(i): adapted_layer(layers[str(i)], adapters[str(i)], GROUPS, owned, self.kernels)
            for i in range(last)
        }
        if last_rows is not None:  # each row is one query from attention on
            wanted = self._owned(slots.at[last_rows].get(mode="clip"), counts)
            owned = {**wanted, _BEFORE_ATTENTION: owned[_BEFORE_ATTENTION]}
        end = str(last)
        adapted[end] = adapted_layer(layers[end], adapters[end], GROUPS, owned, self.kernels)
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

    def _owned(self, slots: jax.Array, counts: jax.Array) -> dict[str, Owned]:
        """By group, for the tokens of these slots."""
        owners = functools.partial(rank_owners, self.num_slots, self.ranks)
        return {
            group: Owned(slots, jnp.asarray(owners(len(names))), counts)
            for group, (_, names) in GROUPS.items()
        }


def ranks_of_slots(loop: LayerLoop) -> int:
    """r of the slots that a loop's layers read, or the layers of the loop inside it."""
    while not isinstance(loop, AdaptedLayers):
        loop = loop.inner  # pyright: ignore[reportAttributeAccessIssue]
    return loop.ranks


def _in_one(parts: Parts, whole: StepInputs) -> Parts:
    """All tokens in one part: two-batch overlap knows no adapters."""
    if len(parts.tokens) == 1:
        return parts
    stream = jnp.concatenate([residual.summed() for residual in parts.residuals])
    rotations = jax.tree.map(lambda *each: jnp.concatenate(each), *parts.rotations)
    return Parts([ResidualStream(stream)], [rotations], [whole])
