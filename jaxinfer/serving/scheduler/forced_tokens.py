"""Tokens that a constraint alone decides, appended without being sampled."""

from collections.abc import Sequence

from jaxinfer.serving.scheduler.schedule import ScheduledRow
from jaxinfer.serving.scheduler.step_updates import StepUpdates


def append_forced(
    updates: StepUpdates, row: ScheduledRow, token_ids: Sequence[int]
) -> Sequence[int]:
    """Append tokens to a request in place of the one that its launched row would sample.

    For tokens that a constraint alone decides. They are fed together in the request's next row,
    as a prompt's are, and what the launched row samples is dropped. The host has read all
    earlier tokens of the request.

    Returns:
        The tokens that were appended: up to one that ends the request.

    Raises:
        ValueError: the row samples nothing, or more than one token, or others are in flight.
    """
    request = row.request
    if row.num_reserved != 1 or request.num_in_flight_tokens != 1 or request.is_finished:
        raise ValueError(
            f"request {request.request_id!r} must be about to sample its next token only"
        )
    row.num_reserved = 0
    request.num_in_flight_tokens = 0
    request.num_tokens = request.num_known_tokens + len(token_ids)
    request.decodes_on_device = False
    return updates.append(request, token_ids, len(token_ids))
