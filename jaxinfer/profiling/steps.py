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
        tokens: fed, of all rows.
        context_tokens: tokens whose keys and values are read, of all rows.
        pairs: of a token fed and a token that it attends to, itself included.
        programs: keys of the programs launched, in order.
    """

    kind: Kind
    rows: int
    tokens: int
    context_tokens: int
    pairs: int
    programs: tuple[str, ...] = ()

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "StepFacts":
        """The inverse of `dataclasses.asdict`, from JSON."""
        return cls(**{**values, "programs": tuple(values["programs"])})
