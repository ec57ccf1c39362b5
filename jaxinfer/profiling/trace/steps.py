"""Facts of a recorded step beside its trace: kind, rows, tokens, and programs."""

import dataclasses
from typing import Any, Literal

Kind = Literal["prefill", "decode"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepFacts:
    """One recorded step, as it was launched.

    Attributes:
        kind: "prefill" if a row fed several tokens.
        rows: sequences in the step.
        tokens: tokens fed, of all rows, drafts included; by each of `num_steps`, on average.
        num_steps: 1, or the length of a multi-step decode, or of a launch with drafts without its
            idle steps, in which no row has part any more.
        context_tokens: tokens whose keys and values are read, of all rows; by the first of
            `num_steps`.
        pairs: pairs of a token fed and a token that it attends to, itself included, of all rows; by
            the first of `num_steps`.
        programs: keys of the programs launched, in order.
    """

    kind: Kind
    rows: int
    tokens: int
    context_tokens: int
    pairs: int
    num_steps: int = 1
    programs: tuple[str, ...] = ()

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "StepFacts":
        """The inverse of `dataclasses.asdict`, from JSON."""
        return cls(**{**values, "programs": tuple(values["programs"])})
