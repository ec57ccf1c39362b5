"""The loop's interfaces: the device, which tests replace by a fake, and who records its steps."""

from contextlib import AbstractContextManager
from typing import Any, Protocol, runtime_checkable

from jaxinfer.serving.requests.result import StepResult
from jaxinfer.serving.scheduler.schedule import Schedule
from jaxinfer.serving.slots.step_masks import StepConstraints


@runtime_checkable
class StepRunner(Protocol):
    """Runs scheduled steps; `Runner` is the implementation on a device."""

    def launch(self, schedule: Schedule) -> Any:
        """Start a step without waiting; returns a handle for `fetch`, or first `sample`."""

    def sample(self, step: Any, constraints: StepConstraints) -> Any:
        """Draw the tokens of a step with host-dependent rows; returns a handle for `fetch`."""

    def fetch(self, step: Any) -> StepResult:
        """Wait for a launched step and copy its results to the host."""
        ...

    def reset_cache(self) -> None:
        """Allocate the KV cache anew after a step that raised."""

    def await_launches(self) -> None:
        """Return when all that was to be launched has been, copies of blocks too."""

    def update_params(self, params: Any) -> None:
        """Use other weights from the next launch on."""

    def sleep(self, *, keep_params: bool) -> None:
        """Release the memory of parameters and cache; the parameters may be kept on the host."""

    def wake_params(self) -> None:
        """Copy the parameters back from the host, if they were kept there."""

    def close(self) -> None:
        """Free the device memory."""


class StepObserver(Protocol):
    """Hears of every step, in the engine's thread; its methods must not raise."""

    def before_step(self) -> None:
        """A step is about to begin; `Engine.drain` and `Engine.observe` may be called."""

    def launched(self, schedule: Schedule) -> None:
        """A step was launched; its requests are as they were for it."""

    def span(self, name: str) -> AbstractContextManager[object]:
        """An `EnterSpan`."""
        ...
