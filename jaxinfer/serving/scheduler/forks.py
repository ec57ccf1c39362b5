"""Forks: further samples of a prompt draw their first tokens from the hidden state of the first."""

from jaxinfer.serving.requests.new_request import Prompt
from jaxinfer.serving.requests.request import Request, RequestStatus
from jaxinfer.serving.scheduler.block_pool import BlockPool
from jaxinfer.serving.scheduler.schedule import ScheduledRow


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
        and not request.proposed_token_ids
        and request.params.prompt_logprobs is None
        and leader.params.prompt_logprobs is None
        and leader.blocks.weight_version == pool.weight_version
        and _are_equal(request.new.prompt, leader.new.prompt)
    )


def _are_equal(prompt: Prompt, other: Prompt) -> bool:
    """Whether both have the same blocks in the prefix cache."""
    same_ids = prompt is other or prompt.packed == other.packed
    return same_ids and prompt.cache_salt == other.cache_salt
