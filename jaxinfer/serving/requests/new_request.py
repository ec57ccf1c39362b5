"""A request as a caller hands it over: what is wanted, and where the outputs go.

Drivers, replicas and processes pass this record on whole. A new field is declared here and read
where it has its effect; nothing between has to know of it.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from jaxinfer.sampling_params import RequestOutputKind, SamplingParams
from jaxinfer.serving.requests.prompts import Prompt

OutputKind = Literal["final", "cumulative", "delta", "tokens"]
"""One output at the end; after each step, all so far; after each step, what is new; or the same as
`TokenOutput`, whose text another process makes."""

Sink = Callable[[Any], None]
"""Receives each output of a request, in the thread that runs the engine's step. From an
`EngineDriver` also the exception that refuses the request, or that ends it and the engine."""

_KINDS: dict[RequestOutputKind, OutputKind] = {
    RequestOutputKind.CUMULATIVE: "cumulative",
    RequestOutputKind.DELTA: "delta",
    RequestOutputKind.FINAL_ONLY: "final",
}

_numbers = itertools.count()


def wanted_outputs(params: SamplingParams) -> OutputKind:
    """The outputs that a caller's parameters ask for."""
    return _KINDS[params.output_kind]


def new_key() -> str:
    """A key that no other request of this process has."""
    return f"request-{next(_numbers)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRequest:
    """One prompt and all that a caller says of it.

    Attributes:
        prompt: what is completed.
        params: how; `n` completions are made, and completion i draws with `seed + i`.
        key: what the engine knows it by; the one that is made here is unique in this process.
        label: the caller's name for it, which its outputs bear; others may use the same. Without
            one it is the key.
        kind: which outputs it gets.
        seed_offset: added to the seed of `params`: the completion's index, where each of several is
            a request of its own.
        prefill_only: only the prompt is run, for its log-probabilities; nothing is sampled.
        priority: of all its completions; lower ones run earlier, see `Scheduler`.
        sink: receives its outputs. None leaves them to `Engine.take_outputs`, or to
            `EngineDriver.step` after `add_by_hand`.
    """

    prompt: Prompt
    params: SamplingParams
    key: str = field(default_factory=new_key)
    label: str = ""
    kind: OutputKind = "cumulative"
    seed_offset: int = 0
    prefill_only: bool = False
    priority: int = 0
    sink: Sink | None = None

    def __post_init__(self) -> None:
        if not self.label:
            object.__setattr__(self, "label", self.key)
