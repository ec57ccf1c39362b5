"""Pausing an engine, and putting it to sleep so that a trainer has its memory."""

from collections.abc import Sequence

from jaxinfer.serving.driver.sleep import check_level, check_mode
from jaxinfer.serving.driver.sleep_state import PauseMode, SleepTag
from jaxinfer.serving.handle import Handle


class MemoryHandover:
    """What `LLM.handover` is: it stops an engine for a while.

    Args:
        handle: of the engine.
    """

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    def pause(self, mode: PauseMode = "abort", *, refuse: bool = False) -> None:
        """Run no step until `resume`; requests that come meanwhile wait.

        `generate` and similar calls wait with them: call `resume` from another thread.

        Args:
            mode: unfinished requests end now with the reason "abort", end first ("wait"), or go on
                after `resume` ("keep").
            refuse: requests that come meanwhile raise `EngineUnavailableError`, and don't wait.

        Raises:
            ValueError: the mode is unknown.
            RuntimeError: "wait", and an earlier pause keeps requests from ending.
        """
        check_mode(mode)
        driver = self._handle.driver
        driver.call(lambda: driver.pauses.pause(mode, refuse))

    def resume(self) -> None:
        """Run steps again after `pause`; an engine that is not paused goes on as it does."""
        self._handle.driver.call(self._handle.driver.pauses.resume)

    @property
    def is_paused(self) -> bool:
        """Whether steps are stopped, by `pause` or by `sleep`."""
        return self._handle.driver.pauses.is_paused

    def sleep(self, level: int = 1, mode: PauseMode = "abort") -> None:
        """Release the devices' memory for other users in this process until `wake_up`.

        Args:
            level: 0 only stops scheduling, 1 moves the weights to pinned host memory and drops the
                KV cache, 2 drops both; new weights then come by `update_params`.
            mode: as in `pause`. Requests that are kept keep their tokens, whose keys and values are
                computed again.

        Raises:
            ValueError: level or mode is unknown, or level 1 or 2 with several processes.
            RuntimeError: it is already asleep, or a replica can't sleep and so none does, or as
                `pause`. Nothing has changed.
        """
        check_level(level)
        check_mode(mode)
        driver = self._handle.driver
        driver.call(lambda: driver.pauses.sleep(level, mode))

    def wake_up(self, tags: Sequence[SleepTag] | None = None) -> None:
        """Bring back what sleeps: nothing compiles, and outputs are as before.

        Args:
            tags: any of "weights", "kv_cache" and "scheduling"; None for all. Scheduling goes on by
                itself once the others are awake.

        Raises:
            TypeError, ValueError: the tags are no list, or one is unknown.
            RuntimeError: a part does not sleep, or scheduling can't resume yet.
        """
        driver = self._handle.driver
        driver.call(lambda: driver.pauses.wake_up(tags))

    @property
    def is_sleeping(self) -> bool:
        """Whether any part of the engine sleeps."""
        return self._handle.driver.pauses.is_sleeping
