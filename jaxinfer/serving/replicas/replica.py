"""One engine of a group and the thread that runs it: the caller's, in turn, or its own.

Only the thread that runs an engine uses it: other threads post actions, which run in order between
two steps.
"""

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from jaxinfer.serving.driver.owner_thread import Action, OwnerThread
from jaxinfer.serving.engine.engine import Engine

_MOST_STEPS_IN_A_ROW = 8


class ReplicaInTurn:
    """An engine that runs in the thread of its caller.

    Attributes:
        engine: the engine; `prepare` and `num_cached_tokens` may be called at any time.
        failure: the error of its last step; such an engine has failed for good.
        is_stepping: whether requested steps are still running.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.failure: BaseException | None = None
        self.is_stepping = False

    def step(self) -> None:
        """Run one step in the caller's thread."""
        try:
            self.engine.step()
        except BaseException as error:  # the group handles failed engines
            self.failure = error

    def post(self, action: Action) -> None:
        """Run the action now."""
        action()

    def call(self, action: Action) -> Any:
        """Run the action now."""
        return action()

    def close(self) -> None:
        """Do nothing: there is no thread."""


class ReplicaThread:
    """An engine that runs in a thread of its own, so that its launches wait for no other replica's.

    Attributes as in `ReplicaInTurn`.

    Args:
        wake: called in the thread when requested steps have ended.
        wants_to_go_on: returns True if another step may follow without a report; called in the
            thread after each step.
        within: makes a context manager that the thread runs in.
    """

    def __init__(
        self,
        engine: Engine,
        name: str,
        wake: Callable[[], None],
        wants_to_go_on: Callable[[], bool],
        within: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext,
    ) -> None:
        self.engine = engine
        self.failure: BaseException | None = None
        self._wake = wake
        self._wants_to_go_on = wants_to_go_on
        self._num_asked = self._num_ended = 0
        self._owner = OwnerThread(name, within=within)

    @property
    def is_stepping(self) -> bool:
        """True if requested steps are still running."""
        return self._num_asked != self._num_ended

    def step(self) -> None:
        """Ask for steps; `wake` is called when they have ended."""
        self._num_asked += 1
        self._owner.post(self._step)

    def post(self, action: Action) -> None:
        """Post an action to the thread; it must not raise."""
        self._owner.post(action)

    def call(self, action: Action) -> Any:
        """Run an action in the thread and wait for its result."""
        return self._owner.call(action)

    def close(self) -> None:
        """End the thread; may be called again."""
        self._owner.end()
        self._owner.join()

    def _step(self) -> None:
        """Run several steps before a report: a round trip through the caller's thread is costly."""
        try:
            for _ in range(_MOST_STEPS_IN_A_ROW):
                self.engine.step()
                if self._owner.has_mail or not self.engine.has_unfinished:
                    break
                if not self._wants_to_go_on():
                    break
        except BaseException as error:  # the group handles failed engines
            self.failure = error
        finally:
            self._num_ended += 1
            self._wake()


Replica = ReplicaInTurn | ReplicaThread
