"""The scheduler's state of one request: its tokens, its progress, and the blocks it holds."""

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from jaxinfer.outputs import FinishReason
from jaxinfer.sampling_params import SamplingParams
from jaxinfer.serving.constraints.constraint import Constraint
from jaxinfer.serving.requests.draft_record import DraftRecord
from jaxinfer.serving.requests.new_request import NewRequest
from jaxinfer.serving.requests.packed_ids import ID_BYTES, pack_ids
from jaxinfer.serving.requests.scores.scored_range import scored_range

IN_FLIGHT_TOKEN = -1
"""Placeholder of a token that the device has sampled and the host has not read yet."""


class RequestStatus(Enum):
    """The state of a request in the scheduler.

    WAITING holds nothing on the device, RUNNING holds a slot and blocks, SWAPPED holds blocks in
    host memory only, FETCHING holds nothing and waits for blocks from a prefix tier, FINISHED holds
    nothing and has left the scheduler.
    """

    WAITING = "waiting"
    RUNNING = "running"
    SWAPPED = "swapped"
    FETCHING = "fetching"
    FINISHED = "finished"


class Rank(NamedTuple):
    """A request's place among the unfinished ones; the lowest goes first.

    Attributes:
        urgency: its priority or, under a fair policy, its priority corrected by its arrival.
        sequence_number: position in the order of arrival.
    """

    urgency: int = 0
    sequence_number: int = 0


@dataclass(frozen=True, slots=True)
class LengthLimits:
    """Upper bounds on a request's length; see `set_limits`.

    Attributes:
        num_tokens: of `Request.num_tokens`, from `max_tokens` and `max_model_len`.
        num_cached_tokens: of the tokens whose keys and values are ever needed: the last token of
            an answer is never fed back.
    """

    num_tokens: int = 0
    num_cached_tokens: int = 0


NO_LIMITS = LengthLimits()
"""The limits of a request that was not checked yet."""


@dataclass(slots=True, eq=False)
class HeldBlocks:
    """The KV-cache blocks of a request and their entries in the prefix index.

    Attributes:
        table: device blocks in order of position; token i lies in block `table[i // block_size]`.
            It only grows while `num_admissions` stays the same.
        host: blocks of the swap space, in order of position, while SWAPPED.
        hashes: hashes of the leading full blocks, as far as they were needed.
        num_registered: leading blocks that were offered to the prefix index.
        weight_version: the weights under which the cached tokens began.
        num_admissions: how often the request started or resumed running; together with its
            identity, a valid key for a cached copy of `table`.
    """

    table: list[int] = field(default_factory=list)
    host: list[int] = field(default_factory=list)
    hashes: list[bytes] = field(default_factory=list)
    num_registered: int = 0
    weight_version: int = 0
    num_admissions: int = 0


@dataclass(slots=True, eq=False)
class RunHistory:
    """What happened to a request on its way, for its caller's metrics.

    Attributes:
        scheduled_time: seconds on the engine's clock when its first step was planned; None before.
        num_prefix_cached_tokens: prompt tokens found in the prefix cache at its first admission;
            all of them if it began as a fork.
        num_draft_tokens: drafts that were verified.
        num_accepted_tokens: of these, drafts that became tokens of the answer.
    """

    scheduled_time: float | None = None
    num_preemptions: int = 0
    num_prefix_cached_tokens: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0


@dataclass(slots=True, eq=False)
class Request:
    """One completion of a `NewRequest` in the scheduler, which alone changes its state.

    A sequence is its prompt, the outputs that the host has read, and the tokens in flight:
    `num_tokens = len(prompt_token_ids) + len(output_token_ids) + num_in_flight_tokens`. The
    difference `num_tokens - num_cached_tokens` is the work that remains before the next token can
    be sampled. That one number expresses chunked prefill, prefix hits, decoding and resumption.

    Counters that every step reads for every row are its own fields, for the sake of the hot loop.

    Attributes:
        request_id: unique among the unfinished requests of a scheduler.
        new: the caller's request, shared by its n completions.
        params: this completion's sampling parameters: `new`'s, except that only the first
            completion has prompt log-probabilities.
        seed: the resolved seed of its random draws.
        scores_forced: whether it scores its forced tokens, if it has any.
        scored: positions of given tokens whose next one is scored.
        output_token_ids: forced tokens, then generated ones that the host has read.
        num_in_flight_tokens: tokens reserved by launched steps that the host has not read yet;
            fewer may be accepted.
        num_tokens: length of the sequence, tokens in flight included.
        num_cached_tokens: leading tokens whose keys and values are in pages, launched steps
            included (in host blocks while SWAPPED). Tokens counted beyond the accepted ones are
            given up when they are read, and overwritten by the next step.
        slot: index in `[0, max_num_seqs)` of its row of per-sequence device state while RUNNING.
        adapter_slot: the device's slot of its adapter while RUNNING; -1 without one.
        decodes_on_device: whether its next row can be a decode without input from the host: the
            device's `last_tokens[slot]` is certainly its last token, in a place known to the host.
        drafts: the record of its drafts, from its first decode in an engine with drafts on.
        ending_token_ids: tokens that may end it: end-of-sequence (unless ignored) and stop tokens.
        limits: bounds on its length; set by `Scheduler.check`.
        rank: its place in the scheduler's order; set by `Scheduler.add`.
        blocks: the KV-cache blocks it holds.
        history: what its caller's metrics report.
        finish_reason: None until FINISHED.
        stop_reason: the stop token id or stop string that ended it, None for end-of-sequence.
        constraint: makes its rows host-dependent; set by the engine. None for most requests.
        is_watched: whether the tokens of each step are reported when they are read, or only those
            that end it; set by the engine.
        output_logprobs: log-probabilities of its outputs from a token on, if the engine wants the
            scheduler to keep them.
    """

    request_id: str
    new: NewRequest
    params: SamplingParams
    seed: int = 0
    scores_forced: bool = True
    prompt_token_ids: list[int] = field(init=False)
    scored: range = field(default=range(0), init=False)
    status: RequestStatus = field(default=RequestStatus.WAITING, init=False)
    output_token_ids: list[int] = field(default_factory=list, init=False)
    num_in_flight_tokens: int = field(default=0, init=False)
    num_tokens: int = field(default=0, init=False)
    num_cached_tokens: int = field(default=0, init=False)
    slot: int | None = field(default=None, init=False)
    adapter_slot: int = field(default=-1, init=False)
    decodes_on_device: bool = field(default=False, init=False)
    drafts: DraftRecord | None = field(default=None, init=False)
    ending_token_ids: frozenset[int] = field(default=frozenset(), init=False)
    limits: LengthLimits = field(default=NO_LIMITS, init=False)
    rank: Rank = field(default=Rank(), init=False)
    blocks: HeldBlocks = field(default_factory=HeldBlocks, init=False)
    history: RunHistory = field(default_factory=RunHistory, init=False)
    finish_reason: FinishReason | None = field(default=None, init=False)
    stop_reason: int | str | None = field(default=None, init=False)
    constraint: Constraint | None = field(default=None, init=False)
    is_watched: bool = field(default=True, init=False)
    output_logprobs: list[float] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        """Begin with the prompt, and with forced tokens as if they had been drawn and read."""
        self.prompt_token_ids = self.new.prompt.token_ids
        self.output_token_ids += self.params.forced_token_ids or ()
        self.num_tokens = self.num_known_tokens
        if self.params.has_given_scores:
            self.scored = scored_range(self.params, self.num_prompt_tokens, self.scores_forced)

    @property
    def num_prompt_tokens(self) -> int:
        """Length of the prompt."""
        return len(self.prompt_token_ids)

    @property
    def num_known_tokens(self) -> int:
        """Tokens that the host knows: the prompt and the outputs read so far."""
        return len(self.prompt_token_ids) + len(self.output_token_ids)

    @property
    def num_pending_tokens(self) -> int:
        """Tokens to feed before its next token, or its end, is due: 1 while it decodes."""
        return min(self.num_tokens, self.limits.num_cached_tokens) - self.num_cached_tokens

    @property
    def is_finished(self) -> bool:
        """Whether it has ended, for any reason."""
        return self.status is RequestStatus.FINISHED

    def forget_tokens_in_flight(self) -> None:
        """Make the tokens that the host has read all there is; no more of it will be read."""
        self.num_in_flight_tokens = 0
        self.num_tokens = self.num_known_tokens

    def tokens(self, start: int, stop: int) -> list[int]:
        """Token ids at positions `[start, stop)`; `IN_FLIGHT_TOKEN` where they are not read."""
        split = len(self.prompt_token_ids)
        if stop <= split:
            return self.prompt_token_ids[start:stop]
        known = self.output_token_ids[max(start - split, 0) : stop - split]
        if start < split:
            known = self.prompt_token_ids[start:] + known
        return known + [IN_FLIGHT_TOKEN] * (stop - start - len(known))

    def packed_tokens(self, start: int, stop: int) -> bytes:
        """`pack_ids` of `tokens`; within the prompt it is a copy of bytes."""
        if stop <= len(self.prompt_token_ids):
            return self.new.prompt.packed[start * ID_BYTES : stop * ID_BYTES]
        return pack_ids(self.tokens(start, stop))
