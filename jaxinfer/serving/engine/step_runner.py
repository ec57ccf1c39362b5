"""What the engine needs of a device, so that its loop can be tested without one."""

from typing import Any, Protocol, runtime_checkable

from jaxinfer.serving.requests.result import StepResult
from jaxinfer.serving.scheduler.schedule import Schedule


@runtime_checkable
class StepRunner(Protocol):
    """What the engine needs of the device; `Runner` is the real one."""

    def launch(self, schedule: Schedule) -> Any:
        """Start a step; returns at once with a handle for `fetch`, or `sample` if it is late."""

    def sample(self, step: Any) -> Any:
        """Draw the tokens of a step that samples late; returns a handle for `fetch`."""

    def fetch(self, step: Any) -> StepResult:
        """Wait for a launched step and read it."""
        ...

    def reset_cache(self) -> None:
        """Allocate the KV cache anew after a step that raised."""

    def update_params(self, params: Any) -> None:
        """Take other weights from the next launch on."""

    def sleep(self, *, keep_params: bool) -> None:
        """Give back the memory of parameters and cache; the parameters may stay on the host."""

    def wake_params(self) -> None:
        """Take the parameters back from the host, if any are there."""

    def close(self) -> None:
        """Free the device memory."""
