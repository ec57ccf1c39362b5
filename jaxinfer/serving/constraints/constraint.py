"""The hook for host-dependent rows: rows whose next token depends on tokens the host must read.

The forward pass of such a row is launched with the others'; its token is drawn once the host has
read the tokens before it. Grammars, thinking budgets and bad words are constraints.
"""

from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from jaxinfer.sampling_params import SamplingParams
from jaxinfer.structured_outputs import ThinkingStage

if TYPE_CHECKING:
    import numpy as np


class TokenEdits(NamedTuple):
    """Edits of the next token's logits: forbidden tokens, or the only allowed one."""

    banned: frozenset[int] = frozenset()
    required: int | None = None


class MaskSource(Protocol):
    """Computes the mask of allowed next tokens: bits of int32 ``[num_words]``."""

    num_words: int

    @property
    def state(self) -> Any:
        """The input of `fill_masks`; None if `finish_mask` writes the whole mask."""

    @staticmethod
    def fill_masks(states: Sequence[tuple[Any, int]], allowed: "np.ndarray") -> None:
        """Compute masks of an engine's sources into rows of int32 ``[n, num_words]``."""

    def finish_mask(self, allowed: "np.ndarray") -> None:
        """Complete the mask that was computed from `state`; raises if there is none."""


class NextToken(NamedTuple):
    """The restrictions on a request's next token.

    Attributes:
        forced: the next tokens, in order, if they are determined and need no sampling.
        mask: computes the allowed next tokens; None leaves the slot's mask as it is.
    """

    edits: TokenEdits = TokenEdits()
    forced: Sequence[int] = ()
    mask: MaskSource | None = None


class Constraint(Protocol):
    """Restricts the tokens of one request by the tokens before them.

    Attributes:
        starts_at: index of the first output that is sampled only once the host has read all outputs
            before it, like all later ones.
    """

    starts_at: int

    def after(self, token_ids: Sequence[int]) -> NextToken:
        """The restrictions after all outputs so far; raises if the request can't go on."""
        ...


class ConstraintSource(Protocol):
    """Makes the constraints of requests, in any thread."""

    def make(
        self, params: SamplingParams, prompt: bytes, stage: ThinkingStage | None, *, calls: bool
    ) -> Constraint | None:
        """A new request's constraint, or None; compiles what `start_all` has not.

        Args:
            prompt: its `pack_ids`, which may have opened the thinking.
            stage: the thinking's stage at the prompt's end; None derives it from the prompt's
                tokens.
            calls: tool calls are parsed from the answer, so that one may end its thinking.

        Raises:
            ValueError: the parameters can't be followed; one line that names the field.
            MissingPackageError: a package for them is not installed.
        """

    def start_all(self, requests: Iterable[SamplingParams]) -> Future[None] | None:
        """Compile in other threads what `make` will need; None if nothing is missing.

        The result is done when all is compiled, or has the error of the first that fails.
        """
