"""The requests that an engine's thread steps by itself, from their arrival to their last output."""

import contextlib
import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from jaxinfer.serving.driver.constraint_queue import ConstraintQueue
from jaxinfer.serving.driver.stepper import Stepper
from jaxinfer.serving.driver.submissions import tell_all
from jaxinfer.serving.requests.new_request import NewRequest, Sink


class DrivenRequests:
    """For the engine's thread alone."""

    def __init__(self, stepper: Stepper, compiling: ConstraintQueue) -> None:
        self._stepper = stepper
        self._compiling = compiling
        self._by_key: dict[str, NewRequest] = {}
        self.is_closed = False

    def __len__(self) -> int:
        """Unfinished ones."""
        return len(self._by_key)

    @property
    def unfinished(self) -> list[NewRequest]:
        """The unfinished ones."""
        return list(self._by_key.values())

    def add_all(self, requests: Sequence[NewRequest], since: float) -> None:
        """Hand requests to the engine, all or none.

        Args:
            requests: their constraints are compiled.
            since: when they arrived, by `time.monotonic`.

        Raises:
            Exception: the engine refuses one, or sleeps.
        """
        self._stepper.sleep.check_takes_requests()
        try:
            for request in requests:
                self._stepper.engine.add(dataclasses.replace(request, sink=self._sink(request)))
                self._by_key[request.key] = request
                self._stepper.deadlines.add(request, since)
        except BaseException:
            self.cancel([request.key for request in requests])
            raise

    def cancel(self, keys: Iterable[str]) -> None:
        """End requests without a last output; ended ones are ignored."""
        for key in keys:
            # Removed before the abort: its last output has no listener.
            self._compiling.drop(key)
            if self._by_key.pop(key, None) is not None:
                self._stepper.engine.abort(key)

    def abort_labels(self, labels: Iterable[str]) -> None:
        """End requests by label; each receives a last output with the reason "abort"."""
        labels = set(labels)
        for key in [key for key, request in self._by_key.items() if request.label in labels]:
            self._stepper.engine.abort(key)
        self._compiling.abort(labels)

    def step(self) -> bool:
        """Run one step if a request needs it; returns whether it did. An error ends all of them."""
        self._stepper.end_overdue()
        if not self._by_key or not self._stepper.sleep.may_step:
            return False
        try:
            self._stepper.step()
            if self._by_key and not self._stepper.engine.has_unfinished:
                raise RuntimeError("the engine lost a request")
        except BaseException as error:
            ended = dict(self._by_key)
            self._by_key.clear()
            tell_all(ended.values(), error)
            for key in ended:
                with contextlib.suppress(Exception):
                    self._stepper.engine.abort(key)
        return True

    def check_open(self) -> None:
        """Raise RuntimeError if the engine is closed."""
        if self.is_closed:
            raise RuntimeError("the engine is closed; make a new one")

    def _sink(self, request: NewRequest) -> Sink:
        """What passes a request's outputs to its caller; called for each row of each step."""
        key, sink = request.key, request.sink or (lambda output: None)
        # Not this object, which has the engine, which has the sink.
        by_key, deadlines = self._by_key, self._stepper.deadlines

        def deliver(output: Any) -> None:
            if output.finished:
                by_key.pop(key, None)
                deadlines.end(key, output)
            sink(output)

        return deliver
