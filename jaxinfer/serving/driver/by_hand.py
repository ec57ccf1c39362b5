"""Requests that a caller steps by hand, as with vLLM's `LLMEngine`."""

import dataclasses
import time
from collections.abc import Callable, Iterable
from typing import Any

from jaxinfer.outputs import RequestOutput
from jaxinfer.serving.driver.constraint_queue import ConstraintQueue
from jaxinfer.serving.driver.stepper import Stepper
from jaxinfer.serving.requests.new_request import NewRequest


class ByHand:
    """Requests that advance only while others run or `step` is called."""

    def __init__(
        self,
        stepper: Stepper,
        compiling: ConstraintQueue,
        call: Callable[[Callable[[], Any]], Any],
        post: Callable[[Callable[[], Any]], None],
    ) -> None:
        self._stepper = stepper
        self._compiling = compiling
        self._call = call
        self._post = post
        self._by_label: dict[str, NewRequest] = {}
        self._outputs: list[RequestOutput] = []

    @property
    def unfinished(self) -> list[NewRequest]:
        """The unfinished ones; for the engine's thread."""
        return list(self._by_label.values())

    def add(self, request: NewRequest) -> None:
        """Enqueue a request.

        Raises:
            ValueError: its label is in use by another such request, or as `Driver.submit`.
        """
        since = time.monotonic()
        self._compiling.compile([request])
        self._call(lambda: self._add(request, since))

    def abort(self, labels: Iterable[str]) -> None:
        """End requests from `add` after the current step; other labels are ignored."""
        labels = list(labels)

        def abort() -> None:
            for label in labels:
                if (request := self._by_label.pop(label, None)) is not None:
                    self._stepper.engine.abort(request.key)
                    self._stepper.deadlines.end(request.key)
                    self._outputs = [o for o in self._outputs if o.request_id != label]

        self._post(abort)

    def step(self) -> list[RequestOutput]:
        """Run one step; returns outputs of requests from `add` since the last call."""

        stepper = self._stepper

        def step() -> list[RequestOutput]:
            try:
                stepper.end_overdue()
                if stepper.engine.has_unfinished and stepper.sleep.may_step:
                    stepper.step()
            finally:
                outputs, self._outputs = self._outputs, []
            return outputs

        return self._call(step)

    @property
    def has_unfinished(self) -> bool:
        """Whether `step` has anything to do or to return."""
        return self._call(lambda: bool(self._stepper.engine.has_unfinished or self._outputs))

    def _add(self, request: NewRequest, since: float) -> None:
        if request.label in self._by_label:
            raise ValueError(f"request id {request.label!r} is in use by an unfinished request")
        self._stepper.sleep.check_takes_requests()
        self._stepper.engine.add(dataclasses.replace(request, sink=self._collect))
        self._by_label[request.label] = request
        self._stepper.deadlines.add(request, since)

    def _collect(self, output: RequestOutput) -> None:
        if output.finished and (ended := self._by_label.pop(output.request_id, None)) is not None:
            self._stepper.deadlines.end(ended.key, output)
        self._outputs.append(output)
