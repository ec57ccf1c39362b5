"""Passes what a step gave rows beside tokens to their requests."""

from typing import Any

from jaxinfer.serving.engine.request_faults import RequestFaults, not_finite
from jaxinfer.serving.engine.request_table import Member, RequestTable
from jaxinfer.serving.requests.result import StepResult
from jaxinfer.serving.scheduler.schedule import Schedule


def take_readouts(
    table: RequestTable,
    faults: RequestFaults,
    weight_version: int,
    schedule: Schedule,
    result: StepResult,
) -> None:
    """Hand out a step's readouts, before its tokens; a request whose value is not finite ends."""
    for name, values in result.readouts.items():
        for row, value in zip(schedule.rows, values, strict=True):
            member = table.members.get(row.request.request_id)
            if member is None or value is None:
                continue
            member.completion.weight_version = weight_version
            _take(table, faults, member, name, value, row.start)


def _take(
    table: RequestTable, faults: RequestFaults, member: Member, name: str, value: Any, start: int
) -> None:
    group, completion = member
    try:
        finite = group.take_readout(name, value, start)
    except Exception as error:
        faults.raised(group, error)
        return
    if not finite:
        group.error = group.error or not_finite(group.new)
        faults.end(completion, "error")
        table.changed[group.request_id] = group
