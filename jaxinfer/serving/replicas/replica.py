"""One engine of a group and who runs it: the caller's thread in its turn, or one of its own.

Whoever runs an engine is the only one that touches it: others post what is to be done with it, and
that is done between two steps, in order.
"""

import queue
import threading
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from jaxinfer.serving.engine import Engine

Action = Callable[[], Any]

_MOST_STEPS_IN_A_ROW = 8


@runtime_checkable
class Replica(Protocol):
    """An engine, run by somebody.

    Attributes:
        engine: the engine; `prepare` and `num_cached_tokens` may be called at any time.
        failure: what its last step raised; such an engine is dead.
    """

    engine: Engine
    failure: BaseException | None

    @property
    def is_stepping(self) -> bool:
        """Whether steps that were asked for have not ended."""
        ...

    def step(self) -> None:
        """Have the engine step; returns when it has, or at once if a thread does it."""

    def post(self, action: Action) -> None:
        """Do something between two steps, after all that was posted before."""

    def call(self, action: Action) -> Any:
        """The same, and wait for its result; what it raises is raised here."""

    def close(self) -> None:
        """End the thread, if there is one, after all that was posted."""


class ReplicaInTurn:
    """Run by whoever calls.

    Args:
        engine: not used by anybody else.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.failure: BaseException | None = None
        self.is_stepping = False

    def step(self) -> None:
        """One step, now."""
        try:
            self.engine.step()
        except BaseException as error:
            self.failure = error
            if not isinstance(error, Exception):  # Ctrl-C in mid-step is the caller's
                raise

    def post(self, action: Action) -> None:
        """Do it now."""
        action()

    def call(self, action: Action) -> Any:
        """Do it now."""
        return action()

    def close(self) -> None:
        """Nothing to end."""


class ReplicaThread:
    """Run by a thread of its own, so that launching for one device need not wait for another's.

    Args:
        engine: not used by anybody else.
        name: of the thread.
        wake: called in the thread when steps that were asked for have ended.
        wants_to_go_on: whether another step may follow without anybody being told; asked in the
            thread after each step.
    """

    def __init__(
        self,
        engine: Engine,
        name: str,
        wake: Callable[[], None],
        wants_to_go_on: Callable[[], bool],
    ) -> None:
        self.engine = engine
        self.failure: BaseException | None = None
        self._wake = wake
        self._wants_to_go_on = wants_to_go_on
        self._inbox: queue.SimpleQueue[Action | None] = queue.SimpleQueue()
        self._num_asked = self._num_ended = 0
        # A daemon: a program that never closes its LLM must still be able to end.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def is_stepping(self) -> bool:
        """Whether steps that were asked for have not ended."""
        return self._num_asked != self._num_ended

    def step(self) -> None:
        """Ask for steps; `wake` is called when they have ended."""
        self._num_asked += 1
        self._inbox.put(self._step)

    def post(self, action: Action) -> None:
        """Do it in the thread; it must not raise."""
        self._inbox.put(action)

    def call(self, action: Action) -> Any:
        """Do it in the thread and wait for that."""
        outcome: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()

        def attempt() -> None:
            try:
                outcome.put((action(), None))
            except BaseException as error:  # raised where it was asked for
                outcome.put((None, error))

        self._inbox.put(attempt)
        result, error = outcome.get()
        if error is not None:
            raise error
        return result

    def close(self) -> None:
        """End the thread; may be called again."""
        self._inbox.put(None)
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while (action := self._inbox.get()) is not None:
            action()

    def _step(self) -> None:
        """Step until somebody should hear of it; each round through the caller's thread costs."""
        try:
            for _ in range(_MOST_STEPS_IN_A_ROW):
                self.engine.step()
                if not (self._inbox.empty() and self.engine.has_unfinished):
                    break
                if not self._wants_to_go_on():
                    break
        except BaseException as error:  # the group says what becomes of a dead engine
            self.failure = error
        finally:
            self._num_ended += 1
            self._wake()
