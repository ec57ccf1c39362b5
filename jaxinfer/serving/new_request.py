"""A request as a caller hands it over: what is wanted, and where the outputs go."""

from collections.abc import Callable
from dataclasses import dataclass

from jaxinfer.outputs import RequestOutput
from jaxinfer.sampling_params import SamplingParams
from jaxinfer.serving.inputs import Prompt
from jaxinfer.serving.request_group import OutputKind


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRequest:
    """One prompt and all that a caller says of it.

    Attributes:
        key: what the engine knows it by; made by `EngineDriver.new_key`, never by a caller.
        label: the caller's name for it, which its outputs bear; others may use the same.
        prompt: what is completed.
        params: how.
        kind: which outputs it gets, see `OutputKind`.
        prefill_only: sample nothing.
        priority: lower ones run earlier, see `Scheduler`.
        put: receives its outputs, or the error that refuses or ends it, in the engine's thread;
            unused by requests that go on by hand.
    """

    key: str
    label: str
    prompt: Prompt
    params: SamplingParams
    kind: OutputKind
    prefill_only: bool = False
    priority: int = 0
    put: Callable[[RequestOutput | BaseException], None] = lambda item: None
