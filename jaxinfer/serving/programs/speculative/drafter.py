"""What drafts tokens, and what it drafts from: values of a program."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

CORPUS = -1
"""In the place of a slot: the corpus."""
NO_DRAFT = -1
"""In the place of a draft that there is not."""


class DraftTextSizes(NamedTuple):
    """Sizes of the texts that drafts are made from, in tokens.

    Attributes:
        history: L, of each slot's sequence; 0 where no sequence is read.
        corpus: C, of all texts beside them; 0 without.
    """

    history: int
    corpus: int = 0


class DraftState(NamedTuple):
    """What drafts are made from; lies on every device, like the newest tokens.

    Attributes:
        history: int32 ``[slots, L]``, the tokens of each slot's sequence by position; anything
            behind its end; None where no sequence is read.
        lengths: int32 ``[slots]``, tokens of each sequence, the one to be fed next included.
        corpus: int32 ``[C]``, texts that any sequence may go on like: 1 + the ids of their tokens,
            and 0 between them and where there is none; None without.
    """

    history: Any
    lengths: Any
    corpus: Any = None


class DraftRows(NamedTuple):
    """The rows that tokens are drafted for.

    Attributes:
        slots: int32 ``[B]``.
        lengths: int32 ``[B]``, tokens of each sequence, the newest included; 0 for padding.
        newest: int32 ``[B]``, the last of them, which the model has not been fed yet.
        most_gained: int32 ``[B]``, most tokens that a row may gain, one more than its drafts.
        block_tables: int32 ``[B, W]``, with room for as many.
    """

    slots: Any
    lengths: Any
    newest: Any
    most_gained: Any
    block_tables: Any


@runtime_checkable
class Drafter(Protocol):
    """How a row's next tokens are guessed; a frozen dataclass, static in a program."""

    @property
    def num_tokens(self) -> int:
        """k, most drafts of a row in a step."""
        ...

    def of_length(self, num_tokens: int) -> "Drafter":
        """The same with another k."""
        ...

    def draft(
        self,
        params: Mapping[str, Any],
        kv: tuple[Any, ...],
        rows: DraftRows,
        state: DraftState,
        *,
        context: Any,
        axis: Any,
    ) -> tuple[tuple[Any, ...], Any]:
        """Draft the tokens that may follow each row's.

        Args:
            params: the parameter tree.
            kv: the pages; donated.
            rows: B of them.
            state: what the device knows of the sequences.
            context: the step's `StepContext`.
            axis: its `TensorAxis`.

        Returns:
            The pages, and int32 ``[B, k]`` drafts with `NO_DRAFT` from the first that there is not.
        """
        ...

    def remember(
        self, state: DraftState, slots: Any, starts: Any, tokens: Any, counts: Any
    ) -> DraftState:
        """What the device knows of the sequences, with tokens that they have gained.

        Args:
            state: before; donated.
            slots: int32 ``[B]``.
            starts: int32 ``[B]``, the place of the first token in each sequence.
            tokens: int32 ``[B, N]``.
            counts: int32 ``[B]``, how many of them count.
        """
        ...
