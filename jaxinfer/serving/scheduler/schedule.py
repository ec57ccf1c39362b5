"""What the scheduler hands out and hands back: one step's rows, and the tokens a row has gained."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from jaxinfer.serving.requests.request import Request


@dataclass(slots=True, eq=False)
class ScheduledRow:
    """One sequence's share of a step.

    The step feeds the tokens at positions `[start, start + num_scheduled_tokens)`; afterwards the
    sequence's context holds `start + num_scheduled_tokens` tokens. The request's own counters
    have already moved past this row when a `Schedule` is returned.

    In a multi-step decode (`Schedule.num_steps` > 1) inner step i feeds the token at `start + i`
    and `num_scheduled_tokens` is 1. The block table has room for all steps; in those beyond
    `num_new_tokens` the row is padding, and their tokens are surplus that the host drops.

    Attributes:
        request: the sequence; its `slot` and `block_table` are those to use.
        start: position of the first token fed.
        num_scheduled_tokens: tokens fed.
        samples: whether the row's last hidden state becomes a token (false for the early chunks
            of a prompt).
        num_new_tokens: tokens that the host keeps at most: 0 unless the row samples, 1 in a
            step, more in a multi-step decode.
    """

    request: Request
    start: int
    num_scheduled_tokens: int
    samples: bool
    num_new_tokens: int

    @property
    def ends_prefill_only(self) -> bool:
        """Whether it is the last row of a request that samples nothing."""
        end = self.start + self.num_scheduled_tokens
        return self.request.prefill_only and end == self.request.num_prompt_tokens


@dataclass(slots=True)
class Schedule:
    """One step: who runs, with how many tokens, and which blocks move first.

    The device must do `swap_out`, then `swap_in`, then the rows. Arrays must be built from it
    before the scheduler is asked for anything else, since block tables may change then.

    Attributes:
        rows: never empty; running requests by rank, then the admitted ones by rank.
        is_decode: every row feeds exactly the token in the device's `last_tokens[slot]` and
            samples, so nothing but tables and lengths must be uploaded.
        num_steps: 1, or the length of a multi-step decode.
        swap_out: pairs (device block, host block) to copy from the device to the host.
        swap_in: pairs (device block, host block) to copy from the host to the device. A host
            block may be given away again by the next schedule's `swap_out`.
        preempted: requests that lost their blocks to ones of lower rank in this step.
        num_tokens: tokens fed in total (in a multi-step decode: by its first inner step).
        samples_late: a row's sampling depends on tokens that the host must read first; the forward
            pass does not wait for that.
        epoch: counts rebuilt caches; `Scheduler.update` ignores schedules of an earlier one.
    """

    rows: list[ScheduledRow]
    is_decode: bool
    num_steps: int = 1
    swap_out: list[tuple[int, int]] = field(default_factory=list)
    swap_in: list[tuple[int, int]] = field(default_factory=list)
    preempted: list[Request] = field(default_factory=list)
    num_tokens: int = 0
    samples_late: bool = False
    epoch: int = 0


@dataclass(slots=True, eq=False)
class RowUpdate:
    """What reading a row's tokens did to its request.

    Attributes:
        row: index in `Schedule.rows`.
        request: its `finish_reason` is set if the tokens ended it.
        token_ids: the leading tokens of the row that were kept and appended to the outputs.
    """

    row: int
    request: Request
    token_ids: Sequence[int]
