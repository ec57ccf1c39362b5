"""A caller's request: prompt, parameters, and the sink for its outputs.

Drivers, replicas, processes and the scheduler pass this frozen record on whole. A new field is
declared here and read where it takes effect; the layers between don't mention it.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from jaxinfer.model.adapters.adapter import Adapter
from jaxinfer.sampling_params import RequestOutputKind, SamplingParams
from jaxinfer.serving.parsers.answer_format import AnswerFormat
from jaxinfer.serving.requests.captured import WantedCapture
from jaxinfer.serving.requests.packed_ids import pack_ids

OutputKind = Literal["final", "cumulative", "delta", "tokens"]
"""One output at the end; all text so far, after each step; the new text, after each step; or new
tokens as `TokenOutput`, for another process to detokenize."""

Sink = Callable[[Any], None]
"""Receives each output of a request, in the thread that runs the engine's step. `Driver` also
passes the exception that refuses the request, or that ends it and the engine."""

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


@dataclass(frozen=True, slots=True)
class Prompt:
    """One checked prompt.

    Attributes:
        token_ids: at least one, each within the model's vocabulary.
        cache_salt: cached blocks are shared only with prompts of the same salt.
        packed: `pack_ids(token_ids)`; computed if left out.
        adapter: the LoRA adapter that the model has for it; None has none.
    """

    token_ids: list[int]
    text: str | None = None
    cache_salt: str | None = None
    packed: bytes = field(default=b"", repr=False, compare=False)
    adapter: Adapter | None = None

    def __post_init__(self) -> None:
        """Pack the ids."""
        if not self.packed:
            object.__setattr__(self, "packed", pack_ids(self.token_ids))

    @property
    def cache_root(self) -> tuple[str | None, int]:
        """What prompts of equal tokens must have in common to share cached blocks."""
        return self.cache_salt, 0 if self.adapter is None else self.adapter.version


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRequest:
    """One prompt and everything that its caller specified.

    Attributes:
        params: sampling parameters; completion i of `n` draws with `seed + i`.
        key: the engine's id of the request; the default is unique in this process.
        label: the caller's id, which its outputs carry; not necessarily unique. Defaults to the
            key.
        seed_offset: added to the seed of `params`: the completion's index, where each of several
            completions is a request of its own.
        prefill_only: run the prompt only, for its log-probabilities or its vector; nothing is
            sampled.
        pooled: whether a `prefill_only` request gets the vector of its last token.
        priority: of all its completions; lower values run earlier, see `Scheduler`.
        answer: how its text is read; None leaves it whole.
        capture: the activations that its outputs have; None for none.
        intervene: whether the engine's intervention changes its residual stream; its prompt's salt
            then keeps its blocks from others.
        sink: receives its outputs. None leaves them to `Engine.take_outputs`, or to
            `ByHand.step` after `ByHand.add`.
    """

    prompt: Prompt
    params: SamplingParams
    key: str = field(default_factory=new_key)
    label: str = ""
    kind: OutputKind = "cumulative"
    seed_offset: int = 0
    prefill_only: bool = False
    pooled: bool = False
    priority: int = 0
    answer: AnswerFormat | None = None
    capture: WantedCapture | None = None
    intervene: bool = False
    sink: Sink | None = None

    def __post_init__(self) -> None:
        """Make a key and a label where the caller gave none."""
        if not self.label:
            object.__setattr__(self, "label", self.key)
