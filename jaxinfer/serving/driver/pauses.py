"""Weight swaps, pauses and sleep: what stops an engine's steps for a time."""

from collections.abc import Callable, Iterable
from typing import Any, Literal, get_args

from jaxinfer.model.adapters.adapter import Adapter
from jaxinfer.serving.driver import sleep
from jaxinfer.serving.driver.sleep_state import PauseMode, SleepTag
from jaxinfer.serving.driver.stepper import Stepper
from jaxinfer.serving.requests.new_request import NewRequest

InFlightPolicy = Literal["keep", "wait", "abort"]
"""The fate of running requests in a weight swap: they continue under the new weights, finish first,
or are aborted. When an adapter is replaced, its requests continue with the version that they have.
"""


class Pauses:
    """What is done between steps, in the engine's thread: by `Driver.call` or `call_async`."""

    def __init__(self, stepper: Stepper, unfinished: Callable[[], list[NewRequest]]) -> None:
        self._stepper = stepper
        self._engine = stepper.engine
        self._sleep = stepper.sleep
        self._unfinished = unfinished

    def update_params(self, params: Any, in_flight: InFlightPolicy) -> None:
        """Swap the weights; only in the engine's thread.

        Args:
            params: as `Steppable.update_params` takes them, checked before.
            in_flight: with "wait", messages posted in the meantime wait too, so that later
                requests run under the new weights.

        Raises:
            Exception: as `Steppable.update_params`, or an error of a step under "wait".
            RuntimeError: the weights sleep, a step runs, or requests can't end because of a pause.
        """
        self._stepper.check_between_steps()
        sleep.check_takes_params(self._sleep)
        self._settle_requests(in_flight)
        self._engine.update_params(params)
        self._sleep.lacks_weights = False

    def settle_earlier(self, adapter: Adapter, in_flight: InFlightPolicy) -> None:
        """Settle the requests that have an earlier version of an adapter, as the policy says.

        Only in the engine's thread. With "wait", messages posted in the meantime wait too.

        Raises:
            Exception: an error of a step under "wait".
            RuntimeError: a step runs, or requests can't end because of a pause.
        """

        def has_earlier(request: NewRequest) -> bool:
            own = request.prompt.adapter
            return own is not None and own.name == adapter.name and own.version < adapter.version

        self._stepper.check_between_steps()
        self._settle_requests(in_flight, has_earlier)

    @property
    def is_sleeping(self) -> bool:
        """Whether any part of the engine sleeps; thread-safe."""
        return bool(self._sleep.asleep)

    @property
    def asleep(self) -> frozenset[SleepTag]:
        """The parts of the engine that sleep; thread-safe."""
        return self._sleep.asleep

    @property
    def is_paused(self) -> bool:
        """Whether `pause` or `sleep` prevents steps; thread-safe."""
        return not self._sleep.may_step

    def pause(self, mode: PauseMode, refuse: bool = False) -> None:
        """Run no step until `resume`; only in the engine's thread, like the next three methods.

        Args:
            mode: already checked; with "wait", messages posted in the meantime wait too.
            refuse: have requests that come meanwhile refused, instead of waiting.

        Raises:
            RuntimeError: a step runs, or requests can't end because of an earlier pause.
            Exception: an error of a step under "wait".
        """
        self._stepper.check_between_steps()
        self._settle_requests(mode)
        self._sleep.is_paused = True
        self._sleep.refuses = refuse

    def check_idle(self) -> None:
        """Check that no request is unfinished, and that the engine is awake.

        Raises:
            RuntimeError: a step runs, a request is unfinished, or a part of the engine sleeps.
        """
        self._stepper.check_between_steps()
        sleep.check_sleeps_not(self._sleep)
        if self._engine.has_unfinished:
            raise RuntimeError(
                "experts move between requests, and some are unfinished: pause the engine first, "
                "so that they end and new ones are refused"
            )

    def resume(self) -> None:
        """Run steps again, unless a part sleeps."""
        self._sleep.is_paused = self._sleep.refuses = False

    def sleep(self, level: int, mode: PauseMode) -> None:
        """Stop scheduling and, from level 1 on, release the device memory.

        Raises:
            ValueError: level 1 or 2 with several processes; no request has ended.
            RuntimeError: the engine is already asleep, or as `pause`.
            Exception: as `Steppable.sleep`; nothing sleeps.
        """
        self._stepper.check_between_steps()
        sleep.check_sleeps_not(self._sleep)
        if level > 0 and not self._engine.can_sleep:
            raise ValueError(
                "sleep(level=1 or 2) works within one process: call pause(), sleep(level=0), or "
                "close the LLM of every process and make new ones"
            )
        if level == 1:
            self._sleep.check_can_run()
        self._settle_requests(mode)
        if level > 0:
            self._engine.sleep(keep_params=level == 1)
        sleep.fall_asleep(self._sleep, level)

    def wake_up(self, tags: Iterable[SleepTag] | None) -> None:
        """Wake sleeping parts; None for all.

        Raises:
            TypeError, ValueError, RuntimeError: as `sleep.parts_to_wake`.
            Exception: the device lacks the memory; the part stays asleep.
        """
        for tag in sleep.parts_to_wake(self._sleep, tags):
            if tag == "weights":
                self._engine.wake_params()
            elif tag == "kv_cache":
                self._engine.wake_cache()
            self._sleep.asleep -= {tag}

    def _settle_requests(
        self, mode: PauseMode, concerned: Callable[[NewRequest], bool] | None = None
    ) -> None:
        """Abort unfinished requests, run steps until they end ("wait"), or keep them.

        Args:
            concerned: says of a request whether it is one of them; None takes all.
        """

        def left() -> bool:
            if not self._engine.has_unfinished:
                return False
            return concerned is None or any(map(concerned, self._unfinished()))

        if mode == "abort":
            for request in filter(concerned or (lambda request: True), self._unfinished()):
                self._engine.abort(request.key)
        if mode == "wait" and left() and not self._sleep.may_step:
            raise RuntimeError(
                "requests can't end while the engine is paused or sleeps: resume it first, or give "
                "'keep' or 'abort' in place of 'wait'"
            )
        while mode == "wait" and left():
            self._stepper.step()
            self._stepper.end_overdue()


def check_in_flight(policy: Any) -> None:
    """Raise ValueError unless it is an `InFlightPolicy`."""
    if policy not in get_args(InFlightPolicy):
        raise ValueError(f"in_flight must be 'keep', 'wait' or 'abort', got {policy!r}")
