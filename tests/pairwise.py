"""Few combinations of settings in which every pair of values of any two settings occurs."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any


def pairwise(*settings: Sequence[Any]) -> list[tuple[Any, ...]]:
    """A covering array of strength 2, by greedy choice among all combinations.

    Most faults that depend on settings at all depend on two of them: Kuhn, Wallace and Gallo,
    "Software fault interactions and implications for software testing", IEEE TSE 30 (2004).

    Args:
        settings: the values of each.
    """
    combinations = list(itertools.product(*settings))
    missing = {pair for each in combinations for pair in _pairs(each)}
    chosen = []
    while missing:
        best = max(combinations, key=lambda each: len(missing.intersection(_pairs(each))))
        missing.difference_update(_pairs(best))
        chosen.append(best)
    return chosen


def _pairs(combination: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    return itertools.combinations(enumerate(combination), 2)
