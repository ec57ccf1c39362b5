"""One engine of a group and the thread that runs it: the caller's thread in turn, or its own.

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

    Args:
        engine: used by this replica only.

    Attributes:
        engine: the engine; `prepare` and `num_cached_tokens` may be called at any time.
        failure: what its last step raised; such an engine is dead.
        is_stepping: whether steps that were asked for have not ended.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.failure: BaseException | None = None
        self.is_stepping = False

    def step(self) -> None:
        """Run one step in the caller's thread."""
        try:
            self.engine.step()
        except BaseException as error:  # the group says what becomes of a dead engine
            self.failure = error

    def post(self, action: Action) -> None:
        """Do it now."""
        action()

    def call(self, action: Action) -> Any:
        """Do it now."""
        return action()

    def close(self) -> None:
        """Nothing to end."""


class ReplicaThread:
    """One that a thread of its own runs, so that launching for it need not wait for another's.

    Attributes as of `ReplicaInTurn`.

    Args:
        engine: used by this replica only.
        name: of the thread.
        wake: called in the thread when steps that were asked for have ended.
        wants_to_go_on: whether another step may follow without a report; called in the thread
            after each step.
        within: makes a block that the thread is in from its begin to its end.
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
        """Whether steps that were asked for have not ended."""
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
        except BaseException as error:  # the group says what becomes of a dead engine
            self.failure = error
        finally:
            self._num_ended += 1
            self._wake()


Replica = ReplicaInTurn | ReplicaThread
