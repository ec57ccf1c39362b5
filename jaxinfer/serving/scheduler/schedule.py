"""A schedule: the rows of one step, and the tokens that each row has gained when it is read."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from jaxinfer.model.adapters.adapter import Adapter
from jaxinfer.serving.prefix_tiers.block_copies import TierCopies
from jaxinfer.serving.requests.request import Request


@dataclass(slots=True, eq=False)
class ScheduledRow:
    """One sequence's share of a step.

    Three counts say what a row does. The launch feeds `num_fed` tokens, at positions `[start, start
    + num_fed)`. At most `num_reserved` tokens are gained by it: blocks are held for their
    positions, and the request's own counters have already moved past all of them when a `Schedule`
    is returned. How many are accepted is known when the step is read (`Scheduler.update`), and the
    counters move back by the rest.

    - A chunk of a prompt reserves nothing, and the last chunk 1: the token sampled after it.
    - A fork feeds nothing and reserves 1: its prompt equals the one whose last chunk is the row
      before, or before other forks of it. It samples from the same hidden state, at `start`, the
      prompt's length.
    - A decode feeds 1 and reserves 1.
    - A multi-step decode (`Schedule.num_steps` > 1) feeds 1 and then its own samples: inner step i
      feeds the token at `start + i`. It reserves as many as the request may still get; in steps
      beyond these the row is padding, which leaves the device's `last_tokens[slot]` alone.
    - A row with drafts (`Schedule.num_drafts` > 0) feeds 1 and up to k drafts, which the device
      makes, samples after each of them, and reserves up to k + 1, in each of `num_steps`. Accepted
      are the drafts that equal what was sampled in their place, up to the first that does not, and
      the token sampled after them. While such a row is in flight, `start` is the furthest that it
      may be.

    In all but the last, what is reserved is accepted.

    Attributes:
        request: the sequence; its `slot` and `blocks.table` are the ones to use.
        start: position of the first token fed.
        num_fed: tokens fed, drafts not counted.
        num_reserved: tokens that the row can gain; 0 if it samples nothing.
    """

    request: Request
    start: int
    num_fed: int
    num_reserved: int

    @property
    def samples(self) -> bool:
        """Whether its hidden states become tokens (not so for the early chunks of a prompt)."""
        return self.num_reserved > 0

    def packed_tokens(self) -> bytes:
        """`pack_ids` of the tokens fed; `IN_FLIGHT_TOKEN` where the host must yet read."""
        return self.request.packed_tokens(self.start, self.start + self.num_fed)

    @property
    def ends_prefill_only(self) -> bool:
        """Whether it is the last row of a request that samples nothing."""
        end = self.start + self.num_fed
        return self.request.new.prefill_only and end == self.request.num_prompt_tokens


@dataclass(slots=True)
class Schedule:
    """One step: who runs, with how many tokens, and which blocks move first.

    The device must do the `tier_copies` out, `swap_out`, `swap_in`, the `tier_copies` back, the
    rows, and then `block_copies`. Arrays must
    be built from it before the scheduler is asked for anything else, since block tables may change
    then.

    Attributes:
        rows: never empty; running requests by rank, then the admitted ones by rank.
        is_decode: every row feeds exactly the token in the device's `last_tokens[slot]`, and
            samples, so nothing but tables and lengths must be uploaded.
        num_steps: 1, or the length of a multi-step decode or of a launch with drafts.
        num_drafts: k of steps with drafts, whose rows reserve up to k + 1 in each; 0 without.
        unknown: in a step with drafts, indices of rows whose tokens the device must be told: all
            that the host knows, but for at most the newest.
        moved: indices of rows whose slot or block table may be another than in the request's last
            row; None if all may be.
        tier_copies: blocks that leave the prefix cache, or come back to it; one or none.
        swap_out: pairs (device block, host block) to copy from the device to the host.
        swap_in: pairs (device block, host block) to copy from the host to the device. A host
            block may be given away again by the next schedule's `swap_out`.
        block_copies: pairs (device block to read, device block to write): of each fork the
            prompt's last block, if that is not full. No block is in both places.
        adapter_loads: pairs (slot, adapter) to write to the device before all else.
        preempted: requests that lost their blocks to ones of lower rank in this step.
        admitted: requests that began or resumed running in it.
        num_tokens: tokens fed in total, without drafts; of a multi-step decode, by its first inner
            step.
        num_prefill_tokens: of these, tokens fed in rows of more than one.
        num_prefill_pairs: pairs of such a token and a token that it attends to, itself included.
        num_context_tokens: tokens whose keys and values are in pages, about.
        launch_time: when it was launched, in seconds on the engine's clock.
        fed: once it was read, the tokens that each of its steps fed, drafts included; idle steps,
            in which no row has part any more, are left out.
        host_dependent: indices of rows whose sampling, unlike their forward pass, waits until the
            host has read their earlier tokens.
        epoch: counts rebuilt caches; `Scheduler.update` ignores schedules of an earlier one.
    """

    rows: list[ScheduledRow]
    is_decode: bool
    num_steps: int = 1
    num_drafts: int = 0
    unknown: Sequence[int] = ()
    moved: list[int] | None = None
    tier_copies: Sequence[TierCopies] = ()
    swap_out: list[tuple[int, int]] = field(default_factory=list)
    swap_in: list[tuple[int, int]] = field(default_factory=list)
    block_copies: list[tuple[int, int]] = field(default_factory=list)
    adapter_loads: list[tuple[int, Adapter]] = field(default_factory=list)
    preempted: list[Request] = field(default_factory=list)
    admitted: list[Request] = field(default_factory=list)
    num_tokens: int = 0
    num_prefill_tokens: int = 0
    num_prefill_pairs: int = 0
    num_context_tokens: int = 0
    launch_time: float = 0.0
    fed: Sequence[int] = ()
    host_dependent: Sequence[int] = ()
    epoch: int = 0


@dataclass(slots=True, eq=False)
class RowUpdate:
    """What reading a row's tokens did to its request.

    Attributes:
        request: its `finish_reason` is set if the tokens ended it.
        token_ids: the leading accepted tokens of the row, up to one that ended the request; they
            were appended to its outputs.
    """

    row: int
    request: Request
    token_ids: Sequence[int]
