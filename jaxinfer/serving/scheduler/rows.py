"""Rows of a step that is being planned: their blocks, and the counters that they move."""

from jaxinfer.serving.requests.request import Request
from jaxinfer.serving.scheduler.block_pool import BlockPool
from jaxinfer.serving.scheduler.request_queues import RequestQueues
from jaxinfer.serving.scheduler.schedule import Schedule, ScheduledRow


def place(queues: RequestQueues, request: Request, count: int, schedule: Schedule) -> None:
    """Add a row of `count` tokens; their blocks are free."""
    start = request.num_cached_tokens
    samples = start + count == request.num_tokens and not request.new.prefill_only
    row = ScheduledRow(request, start, count, int(samples))
    extend_table(queues.pool, request, start + count)
    if not (samples and count == 1 and request.decodes_on_device):
        schedule.is_decode = False
    advance(queues.pool, row)
    if samples:
        request.decodes_on_device = True
    if schedule.moved is not None:
        schedule.moved.append(len(schedule.rows))
    schedule.rows.append(row)
    schedule.num_tokens += count
    if count > 1:
        schedule.num_prefill_tokens += count
        schedule.num_prefill_pairs += count * start + count * (count + 1) // 2


def start_with(request: Request, num_cached_tokens: int) -> None:
    """Count a waiting request's tokens that are in its blocks already."""
    request.num_cached_tokens = num_cached_tokens
    if request.blocks.num_admissions == 0:
        num_cached_tokens = min(num_cached_tokens, request.num_prompt_tokens)
        request.history.num_prefix_cached_tokens = num_cached_tokens


def num_missing_blocks(pool: BlockPool, request: Request, num_tokens: int) -> int:
    """Blocks that the request lacks to hold `num_tokens` tokens."""
    return max(0, pool.blocks_for(num_tokens) - len(request.blocks.table))


def extend_table(pool: BlockPool, request: Request, num_tokens: int) -> None:
    """Allocate the blocks that a request lacks for so many tokens."""
    request.blocks.table += pool.allocate(num_missing_blocks(pool, request, num_tokens))


def advance(pool: BlockPool, row: ScheduledRow) -> None:
    """Count what a row feeds and reserves as if all were accepted, and offer full blocks."""
    request = row.request
    request.num_tokens += row.num_reserved
    request.num_in_flight_tokens += row.num_reserved
    # However a row samples, its last token is yet to be fed.
    request.num_cached_tokens = (
        request.num_tokens - 1 if row.num_reserved else row.start + row.num_fed
    )
    if request.num_cached_tokens // pool.block_size > request.blocks.num_registered:
        pool.register(request)
