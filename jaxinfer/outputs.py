"""Outputs of a request, under vLLM's names."""

import dataclasses
import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from jaxinfer.logprobs import LogprobsAtPosition, Support

if TYPE_CHECKING:
    import numpy as np

FinishReason = Literal["stop", "length", "abort", "error"]

TIMEOUT = "timeout"
"""The stop reason of a request that its own `timeout` has ended."""


def new_call_id() -> str:
    """An id that no other call has."""
    return f"call_{uuid.uuid4().hex[:24]}"


@dataclasses.dataclass(frozen=True, slots=True)
class Reasoning:
    """More of what the model thinks before it answers."""

    text: str


@dataclasses.dataclass(frozen=True, slots=True)
class Content:
    """More of the answer itself."""

    text: str


@dataclasses.dataclass(frozen=True, slots=True)
class CallStart:
    """A tool call begins; its arguments follow.

    Attributes:
        index: of the call in the answer, from 0.
        name: of the function.
        id: unique; not compared.
    """

    index: int
    name: str
    id: str = dataclasses.field(default_factory=new_call_id, compare=False)


@dataclasses.dataclass(frozen=True, slots=True)
class CallArguments:
    """More of a call's arguments, as JSON text.

    Attributes:
        index: of the call.
        text: never empty.
    """

    index: int
    text: str


Piece = Reasoning | Content | CallStart | CallArguments


@dataclasses.dataclass(slots=True)
class CompletionOutput:
    """One completion of a prompt.

    Attributes:
        index: which of the request's `n` completions it is.
        text: the text, without the stop string unless that was asked for.
        token_ids: the tokens, the stop token included.
        cumulative_logprob: sum of the log-probabilities of the tokens; None unless `logprobs`
            was asked for.
        logprobs: for each token the log-probabilities that were asked for; None if none were. With
            ``logprobs=0`` a `ChosenLogprobs`, whose `values` are the plain numbers.
        entropies: with ``entropy=True`` each token's entropy in nats, of the model's own
            distribution, before any edit or truncation: at temperature 1 where the engine's
            `logprobs_mode` is "raw_logprobs", at the request's temperature otherwise.
        supports: with ``support=N`` the tokens that could have been drawn in each token's place.
        finish_reason: "stop", "length", "abort" or "error"; None while it runs.
        stop_reason: the stop string or stop token id that ended it; None for end-of-sequence.
            "timeout" where the reason is "abort" and the request's own `timeout` was over.
        weight_version: as of `RequestOutput`, at this completion's last token.
        pieces: the text, read as reasoning, content and tool calls, where the request says how; the
            text is then the content alone. None elsewhere.
        num_reasoning_tokens: of all its tokens so far; 0 where no reasoning is read.
        captured: the activations that were asked for: NumPy arrays ``[tokens, ...]`` by layer, or
            under "logits", of consecutive tokens, as `Capture` says; None before it has ended, and
            if it was aborted or failed.
    """

    index: int
    text: str
    token_ids: Sequence[int]
    cumulative_logprob: float | None = None
    logprobs: Sequence[LogprobsAtPosition] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    weight_version: int = 0
    pieces: Sequence[Piece] | None = None
    num_reasoning_tokens: int = 0
    captured: "Mapping[int | str, np.ndarray] | None" = dataclasses.field(
        default=None, compare=False
    )
    entropies: Sequence[float] | None = None
    supports: Sequence[Support] | None = None

    def finished(self) -> bool:
        """Whether it has ended."""
        return self.finish_reason is not None


@dataclasses.dataclass(slots=True)
class RequestMetrics:
    """Times and counts of a request; times in seconds on `time.monotonic`'s clock.

    Attributes:
        arrival_time: the request was added.
        scheduled_time: the first step of its prompt was planned.
        first_token_time: its first token was read; of `n` completions the earliest.
        last_token_time: its latest token was read.
        finished_time: its last completion ended.
        num_generated_tokens: tokens of all completions, without forced ones.
        num_preemptions: how often its completions were preempted.
        num_draft_tokens: drafts that were verified for its completions.
        num_accepted_tokens: of these, drafts that became tokens of an answer.
    """

    arrival_time: float
    first_token_time: float | None = None
    last_token_time: float | None = None
    finished_time: float | None = None
    num_generated_tokens: int = 0
    num_preemptions: int = 0
    scheduled_time: float | None = None
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0

    @property
    def ttft(self) -> float | None:
        """Time to first token, in seconds."""
        if self.first_token_time is None:
            return None
        return self.first_token_time - self.arrival_time

    @property
    def tpot(self) -> float | None:
        """Seconds per output token after the first; None with fewer than two tokens."""
        if self.first_token_time is None or self.last_token_time is None:
            return None
        if self.num_generated_tokens < 2:
            return None
        return (self.last_token_time - self.first_token_time) / (self.num_generated_tokens - 1)

    @property
    def queue_time(self) -> float | None:
        """Seconds from arrival until it ran."""
        return None if self.scheduled_time is None else self.scheduled_time - self.arrival_time

    @property
    def prefill_time(self) -> float | None:
        """Seconds from running to the first token."""
        if self.scheduled_time is None or self.first_token_time is None:
            return None
        return self.first_token_time - self.scheduled_time

    @property
    def decode_time(self) -> float | None:
        """Seconds from the first token to the last."""
        if self.first_token_time is None or self.last_token_time is None:
            return None
        return self.last_token_time - self.first_token_time

    @property
    def inference_time(self) -> float | None:
        """Seconds from running to the last token."""
        if self.scheduled_time is None or self.last_token_time is None:
            return None
        return self.last_token_time - self.scheduled_time

    @property
    def e2e_latency(self) -> float | None:
        """Seconds from arrival to the end."""
        return None if self.finished_time is None else self.finished_time - self.arrival_time


class _WithCause:
    """What an output holds beside its fields, all of which JSON can express."""

    __slots__ = ("_cause",)

    @property
    def cause(self) -> BaseException | None:
        """The exception that `error` tells of, with its traceback.

        None if nothing was raised, and behind a server, whose log has it.
        """
        return getattr(self, "_cause", None)

    @cause.setter
    def cause(self, cause: BaseException | None) -> None:
        self._cause = cause


@dataclasses.dataclass(slots=True)
class RequestOutput(_WithCause):
    """A request with its completions: whole or, when streamed, only the text and tokens since the
    last output.

    `json.dumps(dataclasses.asdict(output))` works for every output without captured activations.

    Attributes:
        request_id: the request's name.
        prompt: the prompt's text; None if it was given as token ids.
        prompt_token_ids: the prompt's tokens.
        outputs: one entry for each of the `n` completions.
        prompt_logprobs: for each prompt token its log-probabilities, None for the first and for
            those before `prompt_logprob_start`; None unless asked for.
        prompt_entropies: with ``entropy=True`` beside ``prompt_logprobs``, for the same tokens:
            the entropy in nats of the model's distribution, at temperature 1, at the token's place.
        finished: whether every completion has ended.
        num_cached_tokens: prompt tokens that its first completion did not compute: found in the
            prefix cache or, where an equal prompt was computed in the same step, all of them.
        metrics: times and counts.
        error: what went wrong, when a completion's `finish_reason` is "error"; `cause` has the
            exception, if there was one.
        weight_version: how often the weights had been swapped when its last token was drawn.
        embedding: the final hidden state of the prompt's last token, for `LLM.embed`; else None.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    prompt_logprobs: Sequence[LogprobsAtPosition | None] | None = None
    finished: bool = False
    num_cached_tokens: int = 0
    metrics: RequestMetrics | None = None
    error: str | None = None
    weight_version: int = 0
    embedding: Sequence[float] | None = None
    prompt_entropies: Sequence[float | None] | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class EmbeddingOutput:
    """A text as a vector.

    Attributes:
        token_ids: all tokens of the text.
        embedding: float32 ``[E]``.
    """

    token_ids: list[int]
    embedding: "np.ndarray"


@dataclasses.dataclass(frozen=True, slots=True)
class ScoreOutput:
    """How likely a text is to the model, token by token, at temperature 1.

    Attributes:
        token_ids: all tokens, context included.
        token_logprobs: log-probability of each token given its predecessors; None for the first.
        ranks: 1 where the token was the likeliest; None for the first.
        start: index of the first token that counts: the continuation's first, or 1.
    """

    token_ids: list[int]
    token_logprobs: list[float | None]
    ranks: list[int | None]
    start: int

    @property
    def logprob(self) -> float:
        """Log-probability of the continuation (of the whole text but its first token)."""
        return sum(value for value in self.token_logprobs[self.start :] if value is not None)

    @property
    def is_greedy(self) -> bool:
        """Whether greedy decoding of the context would produce the continuation."""
        return all(rank == 1 for rank in self.ranks[self.start :])
