"""Samples host-dependent rows: reads the tokens before them, then asks their constraints."""

from collections.abc import Sequence

from jaxinfer.serving.constraints.constraint import MaskSource, TokenEdits
from jaxinfer.serving.engine.open_requests import OpenRequests, ReadStep
from jaxinfer.serving.requests.request import Request
from jaxinfer.serving.requests.result import NO_SCORES, StepResult
from jaxinfer.serving.scheduler.schedule import RowUpdate, Schedule, ScheduledRow
from jaxinfer.serving.scheduler.scheduler import Scheduler
from jaxinfer.serving.slots.step_masks import MaskBuffer, StepConstraints

FEWEST_FORCED = 2
"""Forced tokens that are appended unsampled; one costs nothing: its step is launched anyway."""


class HostDependentRows:
    """The rows of constrained requests, between a step's forward pass and its sampling.

    The device waits only for what sampling needs: tokens are passed on to their completions by
    `record`, while the device draws.

    Attributes:
        requests: those with a constraint; ended ones leave at the next `find`.
    """

    def __init__(self, scheduler: Scheduler, requests: OpenRequests) -> None:
        self._scheduler = scheduler
        self._requests = requests
        self._masks = MaskBuffer()
        self._read: list[ReadStep] = []
        self._forced: list[tuple[int, ScheduledRow, Sequence[int]]] = []
        self.requests: list[Request] = []

    def find(self, schedule: Schedule) -> list[int]:
        """Indices of the host-dependent rows of a schedule that was just made."""
        self.requests = [request for request in self.requests if not request.is_finished]
        found = []
        for i, row in enumerate(schedule.rows):
            request, constraint = row.request, row.request.constraint
            number = request.num_tokens - row.num_reserved - request.num_prompt_tokens
            if row.samples and constraint is not None and number >= constraint.starts_at:
                found.append(i)
        return found

    def await_read(self, schedule: Schedule) -> bool:
        """Whether the host must read earlier tokens of a host-dependent row."""
        rows = [schedule.rows[i] for i in schedule.host_dependent]
        return any(row.request.num_in_flight_tokens > row.num_reserved for row in rows)

    def take_step(self, schedule: Schedule, result: StepResult) -> None:
        """Give an earlier step's tokens to the scheduler, and leave the rest to `record`."""
        self._read.append(self._requests.read(schedule, result))

    def constrain(self, schedule: Schedule) -> StepConstraints:
        """Ask constraints for the next tokens, once a step's earlier tokens are taken.

        Two forced tokens or more are appended at once, by `record`. A request without a next token
        ends.
        """
        edits: list[tuple[int, TokenEdits]] = []
        masked: list[tuple[int, MaskSource]] = []
        for i in schedule.host_dependent:
            row = schedule.rows[i]
            request = row.request
            if request.constraint is None or request.num_in_flight_tokens == 0:
                continue  # what it samples is not wanted: it is not its next token
            try:
                wanted = request.constraint.after(request.output_token_ids)
            except Exception as error:
                self._fail(request, error)
                continue
            if len(wanted.forced) >= FEWEST_FORCED:
                self._forced.append((i, row, wanted.forced))
                continue
            edits.append((i, wanted.edits))
            if wanted.mask is not None:
                masked.append((i, wanted.mask))
        if not masked:
            return StepConstraints(edits)
        allowed = self._masks.fill([source for _, source in masked])
        for (i, source), mask in zip(masked, allowed, strict=False):
            try:
                source.finish_mask(mask)
            except Exception as error:
                self._fail(schedule.rows[i].request, error)
        return StepConstraints(edits, [i for i, _ in masked], allowed)

    def record(self) -> None:
        """Pass the tokens that were taken, and then those that are forced, to their completions."""
        read, self._read = self._read, []
        for step in read:
            self._requests.record(step)
        forced, self._forced = self._forced, []
        for i, row, token_ids in forced:
            if row.request.is_finished:  # by a stop string
                continue
            try:
                kept = self._scheduler.append_forced(row, token_ids)
            except Exception as error:
                self._fail(row.request, error)
            else:
                self._requests.record(ReadStep([RowUpdate(i, row.request, kept)], NO_SCORES))

    def _fail(self, request: Request, error: Exception) -> None:
        self.record()
        self._requests.faults.raised_of(request, error)
