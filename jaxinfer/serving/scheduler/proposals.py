"""Proposed tokens: guesses of a request's next tokens, verified together in its next row."""

from collections.abc import Sequence

from jaxinfer.serving.requests.request import Request, RequestStatus
from jaxinfer.serving.scheduler.request_queues import RequestQueues
from jaxinfer.serving.scheduler.schedule import Schedule, ScheduledRow


def propose(request: Request, token_ids: Sequence[int]) -> None:
    """Have a request's next row feed tokens that may be the next of its answer.

    They change no token of the answer: proposals that differ from the token sampled in their
    place are dropped. A row feeds as many as the step's token budget, the request's length and
    the free blocks allow, once the host has read all of the request's tokens. They hold for as
    long as the tokens that are read agree with them, and replace what was proposed before.

    Args:
        request: of a scheduler; nothing happens if it has ended.
        token_ids: a guess of what follows its prompt and its `output_token_ids`.

    Raises:
        ValueError: it samples nothing, or is host-dependent: nothing can be verified at once.
    """
    if request.new.prefill_only or request.constraint is not None:
        why = "samples nothing" if request.new.prefill_only else "is host-dependent"
        raise ValueError(f"request {request.request_id!r} {why}: propose no tokens for it")
    if not request.is_finished:
        request.proposed_token_ids = list(token_ids)
        if token_ids:
            request.decodes_on_device = False


def room_for_proposals(
    queues: RequestQueues, request: Request, count: int, schedule: Schedule, budget: int
) -> int:
    """Most proposals to feed after `count` tokens of its own, of a row that samples.

    A token sampled after the last must still fit into the request. Every running request that
    has no row yet may need one of the step's tokens, and a block for it: proposals leave both.
    """
    end = request.num_cached_tokens + count
    num_unplaced = len(queues.running) - len(schedule.rows) - 1
    num_spare = queues.pool.num_free_blocks - num_unplaced
    num_blocks = max(len(request.blocks.table) + num_spare, queues.pool.blocks_for(end))
    return max(
        0,
        min(
            request.limits.num_tokens - request.num_tokens - 1,
            budget - schedule.num_tokens - count - num_unplaced,
            num_blocks * queues.pool.block_size - end,
        ),
    )


def accept(row: ScheduledRow, num_accepted: int | None) -> int:
    """Check how many tokens of a row that verifies count; its request gives the others up.

    Nothing else of the request is in flight.
    """
    request = row.request
    if num_accepted is None or not 1 <= num_accepted <= row.num_reserved:
        raise ValueError(
            f"request {request.request_id!r}: {num_accepted} of {row.num_reserved} tokens "
            "accepted; a step with proposals must say for each row how many, at least 1"
        )
    request.num_tokens -= row.num_reserved - num_accepted
    # 0 if it was preempted meanwhile.
    request.num_cached_tokens = min(request.num_cached_tokens, request.num_tokens - 1)
    return num_accepted


def follow(request: Request, kept: Sequence[int]) -> None:
    """Drop the proposed tokens that were read, or all of them if the read ones differ."""
    count = len(kept)
    agrees = request.proposed_token_ids[:count] == list(kept)
    request.proposed_token_ids = request.proposed_token_ids[count:] if agrees else []
    running = request.status is RequestStatus.RUNNING
    request.decodes_on_device = running and not request.proposed_token_ids
