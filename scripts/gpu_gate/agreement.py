"""Compares two runs of a request: equal tokens, or a near tie that rounding tipped."""

from collections.abc import Sequence

from jaxinfer.outputs import CompletionOutput

NEAR = 0.05
"""Most that log-probabilities of the same token may differ by between batches, in bfloat16."""


class CheckError(Exception):
    """A check has failed; says how."""


def check_greedy(expected: CompletionOutput, actual: CompletionOutput) -> None:
    """Compare greedy answers that were asked for with their likeliest tokens.

    Raises:
        CheckError: they part at a token that was no near tie.
    """
    ours, theirs = list(expected.token_ids), list(actual.token_ids)
    common = num_common(ours, theirs)
    if common == max(len(ours), len(theirs)):
        return
    if common == min(len(ours), len(theirs)):
        raise CheckError(f"{len(ours)} and {len(theirs)} tokens")
    entry = (expected.logprobs or [])[common]
    mine, other = entry[ours[common]].logprob, entry.get(theirs[common])
    if other is None or mine - other.logprob > NEAR:
        raise CheckError(f"tokens differ at {common}: {ours[common]} and {theirs[common]}")


def check_greedy_all(
    expected: Sequence[CompletionOutput], actual: Sequence[CompletionOutput]
) -> None:
    """`check_greedy` of each pair."""
    for ours, theirs in zip(expected, actual, strict=True):
        check_greedy(ours, theirs)


def check_sampled(expected: CompletionOutput, actual: CompletionOutput) -> int:
    """Compare log-probabilities of two answers drawn alike, as long as their tokens are equal.

    Returns:
        The number of leading tokens that are.

    Raises:
        CheckError: log-probabilities of the same token after the same tokens are not near.
    """
    common = num_common(expected.token_ids, actual.token_ids)
    for i, token in enumerate(expected.token_ids[:common]):
        pair = [(output.logprobs or [])[i][token].logprob for output in (expected, actual)]
        if not abs(pair[0] - pair[1]) <= NEAR:  # NaN is not near, either
            raise CheckError(f"log-probabilities of token {i} are {pair[0]:.4f} and {pair[1]:.4f}")
    return common


def num_common(ours: Sequence[int], theirs: Sequence[int]) -> int:
    """Leading tokens that two answers have in common."""
    pairs = enumerate(zip(ours, theirs, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(ours), len(theirs)))
