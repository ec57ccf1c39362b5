"""A loop over a model's layers that also writes what a draft head reads, into pages of its own.

All of it is of a token, by position, in the blocks of the sequence. What is held of a token depends
on the tokens up to it alone: so a prefix hit, a fork or a block that was swapped brings it along.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import jax
from jax.typing import DTypeLike

from jaxinfer.model.draft_head.weights import DRAFT_HEAD
from jaxinfer.model.layer_kind import LayerKind
from jaxinfer.model.layers.context import LayerStep, Params, Parts
from jaxinfer.model.layers.watching import StepOf, watching
from jaxinfer.serving.programs.layer_loop import LayerLoop
from jaxinfer.serving.programs.step_inputs import StepInputs
from jaxinfer.serving.programs.steps import EVERY_LAYER


class HeadPages(Protocol):
    """What pages hold for a draft head; a frozen dataclass, static in a program."""

    @property
    def states(self) -> tuple[int, ...]:
        """The layers whose incoming residual stream the head reads."""
        ...

    @property
    def reads_embeddings(self) -> bool:
        """Whether what enters the first layer is needed besides."""
        ...

    def of_token(self, dtype: DTypeLike) -> Any:
        """What is held of a token: a tree of ``jax.ShapeDtypeStruct``."""
        ...

    def write(
        self,
        head: Params,
        pages: Any,
        states: Sequence[jax.Array],
        embeddings: jax.Array | None,
        tokens: StepInputs,
    ) -> Any:
        """The pages with what the head reads of tokens.

        Args:
            head: the head's parameters.
            pages: donated.
            states: ``[T, E]`` each, of the tokens.
            embeddings: ``[T, E]``; None where none are needed.
            tokens: the step's, in packed ragged rows.
        """
        ...


@dataclass(frozen=True)
class WatchedLayers:
    """A `LayerLoop` that also writes what the head reads of all tokens that pass.

    Attributes:
        pages: what that is.
        inner: the loop that the tokens pass.
    """

    pages: HeadPages
    inner: LayerLoop = EVERY_LAYER
    runs_user_code = False

    @property
    def num_probed(self) -> int:
        """One for each state that is kept, and the first."""
        return 1 + len(self.pages.states)

    def beside(self, dtype: DTypeLike) -> tuple[Any, ...]:
        """The head's pages of a token, behind what the inner loop keeps."""
        return (*self.inner.beside(dtype), self.pages.of_token(dtype))

    def layer(self, step: Callable[..., Any]) -> LayerStep:
        """As of the inner loop."""
        return self.inner.layer(step)

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
        """Every layer in turn, and then the head's pages."""
        *pages, held = kv
        states, last = self.pages.states, len(kinds) - 1
        if last < max(states):  # fewer layers, which stand for all while memory is planned
            states = [min(1 + i, last) for i in range(len(states))]
        first = {0} if self.pages.reads_embeddings else set()
        seen: dict[int, jax.Array] = {}
        written, x = self.inner(
            params,
            kinds,
            pages,
            parts,
            watching(step_of, {*first, *states}, seen),
            whole=whole,
            last_rows=last_rows,
        )
        read = [seen[layer] for layer in states]
        held = self.pages.write(params[DRAFT_HEAD], held, read, seen.get(0), whole)
        return (*written, held), x
