"""Tokens that the steps of a launch fed: how far each row went is known once it was read."""

import itertools
from collections.abc import Sequence

from jaxinfer.serving.scheduler.schedule import Schedule


def tokens_fed(
    schedule: Schedule, drafts: Sequence[Sequence[tuple[int, int]]] | None
) -> Sequence[int]:
    """What `Schedule.fed` is of a launch with several steps, or with drafts.

    A row has part in the first steps of a launch, until it has gained what it may; then it is
    padding. Steps in which all rows are padding are idle, and left out.

    Args:
        schedule: as it was launched.
        drafts: as of `StepResult`.
    """
    if drafts is not None:
        steps = itertools.zip_longest(*drafts, fillvalue=(-1, 0))
        return [sum(num_drafted + 1 for num_drafted, _ in step) for step in steps]
    gained = [row.num_reserved for row in schedule.rows]
    return [sum(num > step for num in gained) for step in range(schedule.num_steps)]
