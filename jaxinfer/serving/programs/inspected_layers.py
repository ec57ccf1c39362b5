"""A loop over a model's layers whose residual stream is read into pages, or changed, on its way.

What is read lies by position in the blocks of the sequence, as its keys do: so a prefix hit, a fork
or a block that was swapped brings it along. The state of changes lies behind it, in a `Tally` for
each leaf, to which steps add nothing.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int32

from jaxinfer.kernels.attention.kv_cache_spec import Tally
from jaxinfer.kernels.collectives.tensor_axis import MeshAxes
from jaxinfer.kernels.matmul.op import ResidualStream, linear_of, project
from jaxinfer.kernels.rounding import rounded_add
from jaxinfer.model.intervention import InterventionFunction
from jaxinfer.model.layer_kind import LayerKind
from jaxinfer.model.layers import decoder
from jaxinfer.model.layers.context import LayerStep, Params, Parts
from jaxinfer.model.layers.watching import StepOf
from jaxinfer.serving.programs.speculative.paged_rows import write
from jaxinfer.serving.programs.step_inputs import StepInputs
from jaxinfer.serving.slots.step_data import Datum
from jaxinfer.serving.slots.step_rows import StepRows


def _intervened(step: StepRows) -> np.ndarray:
    """Which tokens are of requests that asked to be changed."""
    asked = np.array([row.request.new.intervene for row in step.rows], np.int32)
    return asked[step.row_of_token]


INTERVENED = Datum("intervened", "token", _intervened)
"""1 for tokens that are changed, 0 for all others."""


@dataclass(frozen=True)
class Change:
    """What an intervention does, static in a program.

    Attributes:
        function: the caller's.
        layers: indices of the layers behind which it is called.
        leaves: shapes of its state's leaves.
        structure: of the state.
    """

    function: InterventionFunction = field(repr=False)
    layers: tuple[int, ...]
    leaves: tuple[jax.ShapeDtypeStruct, ...]
    structure: Any

    def __call__(
        self,
        layer: int,
        stream: Float[Array, "T E"],
        asked: Int32[Array, " T"],
        state: Sequence[jax.Array],
    ) -> Float[Array, "T E"]:
        """The stream behind a layer, with tokens changed that asked for it."""
        changed = self.of_each(layer, stream, jax.tree.unflatten(self.structure, state))
        return jnp.where((asked != 0)[:, None], changed, stream)

    @jax.numpy_rank_promotion("allow")  # whatever is set here, for the caller's own code
    def of_each(self, layer: int, stream: Float[Array, "T E"], state: Any) -> Float[Array, "T E"]:
        """The function of every token, each by itself."""
        return jax.vmap(lambda token: self.function(layer, token[None], state)[0])(stream)


class _Tapped(NamedTuple):
    """What a layer returns that is read inside: its pages, and what was read of each part."""

    pages: Any
    read: tuple[jax.Array, ...]


@dataclass(frozen=True)
class OutputOf:
    """Which module's output is read inside a layer, static in a program.

    It is computed once more from what the module's last product reads, beside the layer, which
    stays as it is.

    Attributes:
        tap: the name by which a layer tells of that input.
        module: in a layer's parameters.
        linear: the last product, in the module's.
        form: of a quantized model's products.
        axis: over which the input is split; None where it is whole.
    """

    tap: str
    module: str
    linear: str
    form: Any
    axis: MeshAxes | None

    def __call__(self, layer: Params, x: Float[Array, "T I"]) -> Float[Array, "T E"]:
        """The output for an input, of which a device may have its share alone."""
        module = layer[self.module]
        output = project(x, linear_of(module, self.linear, self.form))
        if self.axis is not None:
            output = jax.lax.psum(output, self.axis)
        bias = module.get(f"{self.linear}_bias")
        return output if bias is None else rounded_add(output, bias)


@dataclass(frozen=True)
class InspectedLayers:
    """A `LayerLoop` that writes what leaves some layers into pages, and changes what leaves others.

    A stream that is changed is read as it is then. The last layer computes all tokens if it is one
    of these, and otherwise those alone that leave it.

    Attributes:
        captured: indices of the layers whose activations are kept.
        width: E.
        change: None changes nothing.
        inside: the module whose output is kept; None keeps the residual stream.
    """

    captured: tuple[int, ...]
    width: int
    change: Change | None = None
    inside: OutputOf | None = None
    num_probed = 1 << 20  # the layers that are meant are there only if all are

    @property
    def runs_user_code(self) -> bool:
        """Whether a caller's function is a part of steps."""
        return self.change is not None

    @property
    def opened(self) -> frozenset[int]:
        """The layers behind which something happens."""
        return frozenset((*self.captured, *(self.change.layers if self.change else ())))

    def beside(self, dtype: DTypeLike) -> tuple[Any, ...]:
        """The stream of a token behind each captured layer, and the state of changes."""
        held = jax.ShapeDtypeStruct((self.width,), jnp.dtype(dtype))
        leaves = self.change.leaves if self.change else ()
        return (held,) * len(self.captured) + tuple(map(Tally, leaves))

    def layer(self, step: Callable[..., Any]) -> LayerStep:
        """The function jitted: the same for all layers, also if few are read inside."""
        if self.inside is None:
            return jax.jit(step)
        name = self.inside.tap

        @functools.wraps(step)
        def tapped(*args: Any) -> tuple[_Tapped, Any]:
            read: list[jax.Array] = []

            def tap(told: str, value: jax.Array) -> None:
                if told == name:
                    read.append(value)

            pages, residuals = step(*args, tap=tap)
            return _Tapped(pages, tuple(read)), residuals

        return jax.jit(tapped)

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
        """Every layer in turn, and then the pages of what was read of them."""
        pages, beside = kv[: len(kinds)], kv[len(kinds) :]
        held, tallies = beside[: len(self.captured)], beside[len(self.captured) :]
        seen: dict[int, jax.Array] = {}
        opened = self._opening(step_of, [tally.counts for tally in tallies], seen)
        needs_all = last_rows is not None and len(kinds) - 1 in self.opened
        rows = None if needs_all else last_rows
        layers = params["model"]["layers"]
        written, x = decoder.run_layers(
            layers, kinds, pages, parts, opened, whole=whole, last_rows=rows
        )
        if needs_all:
            x = x.at[last_rows].get(mode="clip")
        with jax.named_scope("capture"):
            held = [
                write(pages, seen[layer], whole.slot_mapping)
                for layer, pages in zip(self.captured, held, strict=True)
            ]
        return (*written, *held, *tallies), x

    def _opening(
        self, step_of: StepOf, state: Sequence[jax.Array], seen: dict[int, jax.Array]
    ) -> StepOf:
        """`step_of` with layers that change what leaves them, and put it into `seen`."""

        def opened_step_of(index: int, kind: LayerKind) -> LayerStep:
            step = self._reading(step_of(index, kind), index, seen)
            if index not in self.opened:
                return step

            def opened(
                layer: Any,
                pages: Any,
                residuals: Sequence[ResidualStream],
                rotations: Any,
                tokens: Sequence[StepInputs],
                *others: Any,
            ) -> tuple[Any, Sequence[ResidualStream]]:
                written, behind = step(layer, pages, residuals, rotations, tokens, *others)
                streams = [residual.summed() for residual in behind]
                if self.change is not None and index in self.change.layers:
                    with jax.named_scope("intervention"):
                        streams = [
                            self.change(index, stream, part.of_tokens[INTERVENED.name], state)
                            for stream, part in zip(streams, tokens, strict=True)
                        ]
                if index in self.captured and self.inside is None:
                    # Behind the barrier one array is kept, and not all that it is a sum of.
                    seen[index] = jax.lax.optimization_barrier(_joined(streams))
                return written, list(map(_with_stream, behind, streams))

            return opened

        return opened_step_of

    def _reading(self, step: LayerStep, index: int, seen: dict[int, jax.Array]) -> LayerStep:
        """A layer's function that puts what is read inside into `seen`, and returns its pages."""
        inside = self.inside
        if inside is None:
            return step

        def reading(layer: Params, *args: Any) -> tuple[Any, Any]:
            tapped, residuals = step(layer, *args)
            if index in self.captured:
                with jax.named_scope("capture"):
                    seen[index] = inside(layer, _joined(tapped.read))
            return tapped.pages, residuals

        return reading


def _joined(parts: Sequence[jax.Array]) -> jax.Array:
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts)


def _with_stream(residual: ResidualStream, stream: jax.Array) -> ResidualStream:
    """A residual of the same form, so that the next layer is traced as all are, of a stream."""
    nothing = None if residual.delta is None else jnp.zeros_like(residual.delta)
    other = None if residual.other is None else jnp.zeros_like(residual.other)
    return residual._replace(x=stream, delta=nothing, other=other)
