"""Forks: further samples of a prompt draw their first tokens from the hidden state of the first."""

from jaxinfer.serving.requests.new_request import Prompt
from jaxinfer.serving.requests.request import Request, RequestStatus
from jaxinfer.serving.scheduler.block_pool import BlockPool
from jaxinfer.serving.scheduler.rows import start_with
from jaxinfer.serving.scheduler.schedule import Schedule, ScheduledRow


def can_fork(request: Request, row: ScheduledRow, pool: BlockPool) -> bool:
    """Whether a waiting request need not feed its prompt, because the row before it has just done.

    Args:
        request: the first of the waiting ones; nothing of it is in flight.
        row: the last one of the step that is being planned.
        pool: of their blocks.
    """
    leader = row.request
    return (
        pool.enable_prefix_caching
        and row.num_reserved == 1
        and row.start + row.num_fed == leader.num_prompt_tokens
        and request.num_tokens == request.num_prompt_tokens
        and request.status is RequestStatus.WAITING
        and not request.new.prefill_only
        and request.params.prompt_logprobs is None
        and leader.params.prompt_logprobs is None
        and leader.blocks.weight_version == pool.weight_version
        and _are_equal(request.new.prompt, leader.new.prompt)
    )


def claim_fork(request: Request, schedule: Schedule, pool: BlockPool) -> bool:
    """Give a waiting request the blocks of its whole prompt if it can fork the last row."""
    row = schedule.rows[-1]
    if not can_fork(request, row, pool):
        return False
    num_full, num_more = divmod(request.num_prompt_tokens, pool.block_size)
    if num_more and not pool.num_free_blocks:
        return False
    _share_prompt(pool, row.request, request)
    if num_more:
        # The blocks of a fork are not filled yet: another one has the same source.
        is_first = row.num_fed > 0
        table = row.request.blocks.table
        source = table[num_full] if is_first else schedule.block_copies[-1][0]
        own = pool.allocate(1)
        request.blocks.table += own
        schedule.block_copies.append((source, own[0]))
    start_with(request, request.num_prompt_tokens)
    return True


def _share_prompt(pool: BlockPool, leader: Request, request: Request) -> None:
    """Have a request without blocks hold the full blocks of a prompt, as if it had found them.

    Args:
        leader: has the same prompt, whose full blocks it registered under the present weights.
        request: gets blocks, and their hashes.
    """
    pool.index.settle_for(request)
    num_full = request.num_prompt_tokens // pool.block_size
    held = request.blocks
    held.table = leader.blocks.table[:num_full]
    held.hashes = leader.blocks.hashes[:num_full]
    held.num_registered = num_full
    held.weight_version = leader.blocks.weight_version
    pool.share(held.table)


def _are_equal(prompt: Prompt, other: Prompt) -> bool:
    """Whether both have the same blocks in the prefix cache."""
    same_ids = prompt is other or prompt.packed == other.packed
    return same_ids and prompt.cache_root == other.cache_root
