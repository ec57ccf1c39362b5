"""The scheduler's state of one request: its tokens, its progress, and the blocks it holds."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from jaxinfer.outputs import FinishReason
from jaxinfer.sampling_params import SamplingParams
from jaxinfer.serving.requests.new_request import NewRequest
from jaxinfer.serving.requests.packed_ids import ID_BYTES, pack_ids

if TYPE_CHECKING:
    from jaxinfer.serving.guided.thinking import AnswerMatcher

IN_FLIGHT_TOKEN = -1
"""Placeholder of a token that the device has sampled and the host has not read yet."""


class RequestStatus(Enum):
    """The state of a request in the scheduler.

    WAITING holds nothing on the device, RUNNING holds a slot and blocks, SWAPPED holds blocks in
    host memory only, FINISHED holds nothing and has left the scheduler.
    """

    WAITING = "waiting"
    RUNNING = "running"
    SWAPPED = "swapped"
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
        num_preemptions: how often it was preempted.
        num_prefix_cached_tokens: prompt tokens found in the prefix cache at its first admission;
            all of them if it began as a fork.
    """

    scheduled_time: float | None = None
    num_preemptions: int = 0
    num_prefix_cached_tokens: int = 0


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
        prompt_token_ids: the token ids of the prompt.
        status: see `RequestStatus`.
        output_token_ids: generated tokens that the host has read.
        num_in_flight_tokens: tokens reserved by launched steps that the host has not read yet;
            fewer may be accepted.
        num_void_tokens: tokens reserved by launched steps that are dropped when they are read; see
            `note_thought`.
        num_tokens: length of the sequence, tokens in flight included.
        num_cached_tokens: leading tokens whose keys and values are in pages, launched steps
            included (in host blocks while SWAPPED). Tokens counted beyond the accepted ones are
            given up when they are read, and overwritten by the next step.
        slot: index in `[0, max_num_seqs)` of its row of per-sequence device state while RUNNING.
        decodes_on_device: whether its next row can be a decode without input from the host: the
            device's `last_tokens[slot]` is certainly its last token, and nothing is proposed.
        proposed_token_ids: a guess of the tokens that follow the ones read by the host; set by
            `Scheduler.propose`.
        ending_token_ids: tokens that may end it: end-of-sequence (unless ignored) and stop tokens.
        limits: bounds on its length; set by `Scheduler.check`.
        rank: its place in the scheduler's order; set by `Scheduler.add`.
        blocks: the KV-cache blocks it holds.
        history: what its caller's metrics report.
        finish_reason: None until FINISHED.
        stop_reason: the stop token id or stop string that ended it, None for end-of-sequence.
        matcher: follows its answer through its grammar; set by the engine. None without one.
    """

    request_id: str
    new: NewRequest
    params: SamplingParams
    seed: int = 0
    prompt_token_ids: list[int] = field(init=False)
    status: RequestStatus = field(default=RequestStatus.WAITING, init=False)
    output_token_ids: list[int] = field(default_factory=list, init=False)
    num_in_flight_tokens: int = field(default=0, init=False)
    num_void_tokens: int = field(default=0, init=False)
    num_tokens: int = field(default=0, init=False)
    num_cached_tokens: int = field(default=0, init=False)
    slot: int | None = field(default=None, init=False)
    decodes_on_device: bool = field(default=False, init=False)
    proposed_token_ids: list[int] = field(default_factory=list, init=False)
    ending_token_ids: frozenset[int] = field(default=frozenset(), init=False)
    limits: LengthLimits = field(default=NO_LIMITS, init=False)
    rank: Rank = field(default=Rank(), init=False)
    blocks: HeldBlocks = field(default_factory=HeldBlocks, init=False)
    history: RunHistory = field(default_factory=RunHistory, init=False)
    finish_reason: FinishReason | None = field(default=None, init=False)
    stop_reason: int | str | None = field(default=None, init=False)
    matcher: "AnswerMatcher | None" = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.prompt_token_ids = self.new.prompt.token_ids
        self.num_tokens = len(self.prompt_token_ids)

    @property
    def samples_late(self) -> bool:
        """Whether its sampling may read its own tokens on the host; see `samples_late_at`.

        Bad words may be several tokens long, a grammar's next mask depends on all tokens so far,
        and a thinking budget may be spent. Nothing is proposed for such a request.
        """
        params = self.params
        return (
            bool(params.bad_words or params.structured_outputs)
            or params.thinking_token_budget is not None
        )

    def samples_late_at(self, number: int) -> bool:
        """Whether the sampling of its output of that number reads earlier ones on the host."""
        params = self.params
        if params.bad_words or (params.structured_outputs and not self.thinks_freely):
            return True
        budget = params.thinking_token_budget  # not spent before there are as many tokens
        return budget is not None and number >= budget

    @property
    def decodes_several(self) -> bool:
        """Whether a launch may draw several of its tokens: no token changes how the next is drawn.

        And nothing of that lies in its slot; so log-probabilities of likeliest tokens are out, too.
        """
        is_plain = self.matcher is None and self.params.sampling_mode("none") != "full"
        return is_plain and self.decodes_on_device

    @property
    def thinks_freely(self) -> bool:
        """Whether it is within a thinking, behind which its grammar begins.

        Its outputs are drawn before those ahead of them are read. Those that turn out to be behind
        the end are dropped, but penalties would count them.
        """
        matcher = self.matcher
        return matcher is not None and matcher.is_thinking and not self.params.has_penalties

    @property
    def is_unedited(self) -> bool:
        """Whether it `thinks_freely`, and no budget can end that."""
        return self.thinks_freely and self.params.thinking_token_budget is None

    def note_thought(self, token_ids: Sequence[int]) -> None:
        """Take in outputs of one that `thinks_freely`, as they are read, before they are its own.

        If they end the thinking, what was launched behind them is dropped as if it had not been:
        its next row feeds the last of them again, and samples by the grammar.
        """
        matcher = self.matcher
        if matcher is None:
            return
        matcher.consume(list(token_ids))
        if matcher.is_thinking:
            return
        self.num_void_tokens = self.num_in_flight_tokens
        self.num_in_flight_tokens = 0
        self.num_tokens = self.num_known_tokens + len(token_ids)
        # 0 if it was preempted meanwhile.
        self.num_cached_tokens = min(self.num_cached_tokens, self.num_tokens - 1)
        self.decodes_on_device = False

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
    def awaits_read(self) -> bool:
        """Whether the host must read its tokens in flight before it can be fed again.

        So it is while a row that verifies is in flight, and when proposals are to follow.
        """
        return self.num_in_flight_tokens > 0 and not self.decodes_on_device

    @property
    def is_finished(self) -> bool:
        """Whether it has ended, for any reason."""
        return self.status is RequestStatus.FINISHED

    @property
    def takes_forced_tokens(self) -> bool:
        """Whether tokens that its grammar forces may be appended without being sampled.

        Not if their log-probabilities are reported, penalties count them, or another rule could
        forbid them.
        """
        params = self.params
        return not (
            self.matcher is None
            or params.logprobs is not None
            or params.has_penalties
            or params.bad_words
            or params.allowed_token_ids is not None
            or (params.thinking_token_budget is not None and not self._thinks_first)
        )

    @property
    def _thinks_first(self) -> bool:
        """Whether its grammar begins when its thinking, and so the budget of that, is over."""
        given = self.params.structured_outputs
        return given is not None and given.after_thinking

    def forget_tokens_in_flight(self) -> None:
        """Make the tokens that the host has read all there is; no more of it will be read."""
        self.num_in_flight_tokens = self.num_void_tokens = 0
        self.num_tokens = self.num_known_tokens

    def give_up_tokens(self, count: int) -> None:
        """Shorten it by reserved tokens that were not accepted; nothing of it is in flight."""
        self.num_tokens -= count
        # 0 if it was preempted meanwhile.
        self.num_cached_tokens = min(self.num_cached_tokens, self.num_tokens - 1)

    def follow_proposals(self, kept: Sequence[int]) -> None:
        """Drop the proposed tokens that were read, or all of them if the read ones differ."""
        count = len(kept)
        agrees = self.proposed_token_ids[:count] == list(kept)
        self.proposed_token_ids = self.proposed_token_ids[count:] if agrees else []
        running = self.status is RequestStatus.RUNNING
        self.decodes_on_device = running and not self.proposed_token_ids

    def tokens(self, start: int, stop: int) -> list[int]:
        """Token ids at positions `[start, stop)`; `IN_FLIGHT_TOKEN` where the host must yet read.

        Args:
            start: first position, at least 0.
            stop: one past the last position, at most `num_tokens`.
        """
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
