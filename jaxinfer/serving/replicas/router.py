"""Chooses the replica for a request: a pure function of the replicas' caches and loads."""

from collections.abc import Sequence
from dataclasses import dataclass

_ALWAYS_ACCEPTED = 8  # sequences; a step of so many rows takes hardly longer than a step of one


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """The router's view of a replica.

    Attributes:
        num_cached_tokens: leading tokens of the new request's prompt that it has in its cache.
        num_sequences: unfinished sequences that were sent to it.
        load: `request_load` of these, added up.
    """

    index: int
    num_cached_tokens: int
    num_sequences: int
    load: int


def request_load(num_sequences: int, num_new_tokens: int, token_budget: int) -> int:
    """A request's contribution to its replica's load.

    Every decode step has a row for each sequence, so these count first; tokens that must be
    computed weigh as much as a sequence when they fill a step. Integers, so that it can be
    subtracted exactly.

    Args:
        num_sequences: completions of the prompt.
        num_new_tokens: tokens of the prompt that the replica's cache lacks.
        token_budget: most tokens of a step.
    """
    return num_sequences * token_budget + num_new_tokens


def choose_replica(replicas: Sequence[ReplicaView]) -> int:
    """The index of the replica that caches most of the prompt; among equals, the least loaded.

    A prefix that all prompts begin with must not keep all of them on the first replica that
    computed it, so a replica with more than 8 sequences and 1.5 times as many as another is
    skipped: the prefix is then computed once more on another replica, and both can serve it. Ties
    go to the lowest index, so that routing is deterministic.
    """
    fewest = min(replica.num_sequences for replica in replicas)
    limit = max(_ALWAYS_ACCEPTED, fewest + fewest // 2)
    open_ones = [replica for replica in replicas if replica.num_sequences <= limit]
    best = min(open_ones, key=lambda r: (-r.num_cached_tokens, r.load, r.index))
    return best.index
