"""One request's host state: its tokens, how far they are cached, and what it holds."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from jaxinfer.outputs import FinishReason
from jaxinfer.sampling_params import SamplingParams

if TYPE_CHECKING:
    from jaxinfer.serving.guided.matcher import Matcher

Rank = tuple[int, int]
"""Priority, then order of arrival; the lowest goes first."""

IN_FLIGHT_TOKEN = -1
"""Stands for a token that the device has sampled and the host has not read yet."""

ID_BYTES = 4
"""Bytes of a packed token id."""


def pack_ids(token_ids: Sequence[int]) -> bytes:
    """Token ids as int32 in the machine's byte order, `ID_BYTES` each.

    Raises:
        OverflowError: an id is no int32.
    """
    return array("i", token_ids).tobytes()


class RequestStatus(Enum):
    """Where a request stands.

    WAITING holds nothing on the device, RUNNING holds a slot and blocks, SWAPPED holds blocks in
    host memory only, FINISHED holds nothing and is known to nobody but its owner.
    """

    WAITING = "waiting"
    RUNNING = "running"
    SWAPPED = "swapped"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Request:
    """A prompt on its way to becoming an answer; only the scheduler changes its state.

    A sequence is its prompt, the outputs that the host has read, and the tokens in flight:
    `num_tokens = len(prompt_token_ids) + len(output_token_ids) + num_in_flight_tokens`. The
    difference `num_tokens - num_cached_tokens` is the work that remains before the next token can
    be sampled. That one number expresses chunked prefill, prefix hits, decoding and resumption.

    Attributes:
        request_id: unique among the unfinished requests of a scheduler.
        prompt_token_ids: at least one token id.
        params: the sampling parameters; `n` is unfolded by the engine into n requests.
        cache_salt: requests share cached blocks only with requests of the same salt.
        arrival_time: seconds on the engine's clock; not used for ordering (`Scheduler.add` is).
        scheduled_time: when its first step was planned, on the same clock; None while it waits
            for that.
        seed: the resolved seed of the request's random draws.
        prefill_only: it ends, by "length", when its prompt has run; nothing is sampled.
        packed_prompt: `pack_ids(prompt_token_ids)`, made here if it is not given.
        priority: requests of a lower one are admitted first and preempted last.
        status: see `RequestStatus`.
        output_token_ids: generated tokens that the host has read.
        num_in_flight_tokens: tokens reserved by launched steps that the host has not read yet;
            fewer may be accepted.
        num_tokens: length of the sequence, tokens in flight included.
        num_cached_tokens: leading tokens whose keys and values are in pages, launched steps
            included (in host blocks while SWAPPED). What it counts beyond the accepted tokens is
            given up when they are read, and overwritten by the next step.
        num_prefix_cached_tokens: prompt tokens found in the prefix cache when it first ran.
        max_num_tokens: `num_tokens` never exceeds this; set by `Scheduler.add` from `max_tokens`
            and `max_model_len`.
        max_cached_tokens: tokens whose keys and values will ever be needed: the last token of an
            answer is never fed back.
        ending_token_ids: tokens that may end it: end-of-sequence (unless ignored) and stop tokens.
        block_table: device blocks in order of position; token i lives in block
            `block_table[i // block_size]`. It only grows while `num_admissions` stays the same.
        host_blocks: blocks of the swap space, in order of position, while SWAPPED.
        slot: index in `[0, max_num_seqs)` of its row of per-sequence device state while RUNNING.
        decodes_on_device: whether its next row can be a decode that needs nothing of the host: the
            device's `last_tokens[slot]` is its last token for certain, and nothing is proposed.
        proposed_token_ids: a guess of what follows the tokens that the host has read; set by
            `Scheduler.propose`.
        num_admissions: how often it started or resumed running; with identity, a key under which
            copies of `block_table` may be kept and extended.
        num_preemptions: how often it was preempted.
        finish_reason: None until FINISHED.
        stop_reason: the stop token id or stop string that ended it, None for end-of-sequence.
        block_hashes: hashes of its leading full blocks, as far as they were needed.
        num_registered_blocks: leading blocks that were offered to the prefix index.
        weight_version: the weights under which its cached tokens began.
        sequence_number: position in the order of arrival.
        urgency: what its priority comes to in the queue: the same, or under a fair policy what it
            is with the time of its arrival.
        samples_late: its sampling reads its own tokens on the host, so that it takes part in no
            multi-step decodes: bad words may be several tokens long, and a grammar's next mask
            depends on all tokens so far.
        matcher: follows its answer through its grammar; set by the engine. None without one.
    """

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams
    cache_salt: str | None = None
    arrival_time: float = 0.0
    seed: int = 0
    prefill_only: bool = False
    packed_prompt: bytes = b""
    priority: int = 0
    scheduled_time: float | None = field(default=None, init=False)
    status: RequestStatus = field(default=RequestStatus.WAITING, init=False)
    output_token_ids: list[int] = field(default_factory=list, init=False)
    num_in_flight_tokens: int = field(default=0, init=False)
    num_tokens: int = field(default=0, init=False)
    num_cached_tokens: int = field(default=0, init=False)
    num_prefix_cached_tokens: int = field(default=0, init=False)
    max_num_tokens: int = field(default=0, init=False)
    max_cached_tokens: int = field(default=0, init=False)
    ending_token_ids: frozenset[int] = field(default=frozenset(), init=False)
    block_table: list[int] = field(default_factory=list, init=False)
    host_blocks: list[int] = field(default_factory=list, init=False)
    slot: int | None = field(default=None, init=False)
    decodes_on_device: bool = field(default=False, init=False)
    proposed_token_ids: list[int] = field(default_factory=list, init=False)
    num_admissions: int = field(default=0, init=False)
    num_preemptions: int = field(default=0, init=False)
    finish_reason: FinishReason | None = field(default=None, init=False)
    stop_reason: int | str | None = field(default=None, init=False)
    block_hashes: list[bytes] = field(default_factory=list, init=False)
    num_registered_blocks: int = field(default=0, init=False)
    weight_version: int = field(default=0, init=False)
    sequence_number: int = field(default=0, init=False)
    urgency: int = field(default=0, init=False)
    samples_late: bool = field(default=False, init=False)
    matcher: "Matcher | None" = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.num_tokens = len(self.prompt_token_ids)
        self.urgency = self.priority
        self.samples_late = bool(self.params.bad_words or self.params.structured_outputs)
        if not self.packed_prompt:
            self.packed_prompt = pack_ids(self.prompt_token_ids)

    @property
    def rank(self) -> Rank:
        """Its place among the unfinished requests: by urgency, then by arrival."""
        return self.urgency, self.sequence_number

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
        return min(self.num_tokens, self.max_cached_tokens) - self.num_cached_tokens

    @property
    def awaits_read(self) -> bool:
        """Whether the host must read its tokens in flight before it can be fed again.

        So it is while a row that verifies is in flight, and when proposals are to follow.
        """
        return self.num_in_flight_tokens > 0 and not self.decodes_on_device

    @property
    def is_finished(self) -> bool:
        """Whether it has ended, for whatever reason."""
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
        )

    def forget_tokens_in_flight(self) -> None:
        """Make the tokens that the host has read all there is."""
        self.num_in_flight_tokens = 0
        self.num_tokens = self.num_known_tokens

    def give_up_tokens(self, count: int) -> None:
        """Shorten it by reserved tokens that were not accepted; nothing of it is in flight."""
        self.num_tokens -= count
        # 0 if it was preempted meanwhile.
        self.num_cached_tokens = min(self.num_cached_tokens, self.num_tokens - 1)

    def follow_proposals(self, kept: Sequence[int]) -> None:
        """Go on in what was proposed past tokens that were read, or drop it if they differ."""
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
            return self.packed_prompt[start * ID_BYTES : stop * ID_BYTES]
        return pack_ids(self.tokens(start, stop))
