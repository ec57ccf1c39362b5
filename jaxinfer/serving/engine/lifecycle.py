"""What is done to an engine between two steps: new weights, sleep, the end."""

from typing import Any

from jaxinfer.errors import StepError
from jaxinfer.serving.engine.loop import Loop
from jaxinfer.serving.engine.open_requests import OpenRequests
from jaxinfer.serving.engine.recovery import InFlight, Recovery
from jaxinfer.serving.engine.step_runner import StepRunner
from jaxinfer.serving.scheduler.scheduler import Scheduler


class Lifecycle:
    """The calls between steps that concern all requests."""

    def __init__(
        self,
        runner: StepRunner,
        scheduler: Scheduler,
        requests: OpenRequests,
        loop: Loop,
        recovery: Recovery,
        in_flight: InFlight,
    ) -> None:
        self._runner = runner
        self._scheduler = scheduler
        self._requests = requests
        self._loop = loop
        self._recovery = recovery
        self._in_flight = in_flight

    def update_params(self, params: Any) -> None:
        """Swap the weights between two steps.

        Running requests keep their cached keys and values; the prefix cache is invalidated.

        Raises:
            ValueError: the tree differs from the current one; names the first differing leaf.
            TypeError: a leaf is not an array.
            StepError: the weights were lost; the engine is dead.
        """
        self._loop.check_alive()
        self._loop.read_steps(leave=0)
        try:
            self._runner.update_params(params)
        except StepError as error:
            raise self._recovery.give_up(str(error), error) from error
        self._requests.use_new_weights()
        self._scheduler.invalidate_prefix_cache()

    def prepare_sleep(self) -> None:
        """Read steps in flight and requeue unfinished requests with the tokens that they have.

        Raises:
            StepError: the engine has failed for good.
        """
        self._loop.check_alive()
        self._loop.read_steps(leave=0)
        self._requests.collect()
        self._scheduler.requeue_all()

    def sleep(self, *, keep_params: bool) -> None:
        """Release the device memory between two steps.

        Unfinished requests keep their tokens and wait for recomputation.

        Args:
            keep_params: whether the weights are kept in pinned host memory.

        Raises:
            Exception: the host lacks the memory; no array was released.
            StepError: the engine has failed for good.
        """
        self.prepare_sleep()
        self._runner.await_launches()
        self._scheduler.tiers.settle()
        self._runner.sleep(keep_params=keep_params)

    def wake_params(self) -> None:
        """Copy the weights back from host memory; raises if the device lacks the memory."""
        self._loop.check_alive()
        self._runner.wake_params()

    def wake_cache(self) -> None:
        """Allocate the KV cache and the slots, zeroed; raises if the device lacks the memory."""
        self._loop.check_alive()
        self._runner.reset_cache()

    def close(self) -> None:
        """Abort everything and free the device memory; safe to call again."""
        try:
            self._runner.await_launches()  # which have evicted blocks to copy out
            # Blocks that running requests hold may not have been filled.
            self._scheduler.tiers.close(keep=self._recovery.failure is None)
        finally:
            for request_id in self._requests.ids:
                self._requests.abort(request_id)
            self._recovery.is_closed = True
            self._in_flight.clear()
            self._runner.close()
