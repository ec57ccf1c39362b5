"""The interface of an engine that takes requests: a single engine or a group of replicas."""

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from jaxinfer.errors import JaxinferError
from jaxinfer.outputs import RequestOutput
from jaxinfer.serving.engine.metrics import RequestCounts
from jaxinfer.serving.requests.new_request import NewRequest


@runtime_checkable
class Steppable(Protocol):
    """Takes requests and advances them; not thread-safe. See `Engine`."""

    @property
    def has_unfinished(self) -> bool:
        """Whether a request is running or waiting, or an output has not been taken."""
        ...

    @property
    def failure(self) -> JaxinferError | None:
        """The error that made the engine refuse requests for good, or None; thread-safe."""
        ...

    def counts(self) -> RequestCounts:
        """A snapshot of the engine's counters and gauges; thread-safe."""
        ...

    def add(self, request: NewRequest) -> None:
        """Enqueue a request."""

    def abort(self, request_id: str) -> bool:
        """End a request now; returns whether an unfinished request had that id."""
        ...

    def step(self) -> None:
        """Advance the scheduled requests and deliver their outputs."""

    def take_outputs(self) -> list[RequestOutput]:
        """Outputs of requests without a sink, since the last call."""
        ...

    def update_params(self, params: Mapping[str, Any]) -> None:
        """Swap the weights between two steps."""

    def reset_prefix_cache(self) -> None:
        """Invalidate all cached prefixes."""

    @property
    def can_sleep(self) -> bool:
        """Whether `sleep` is supported; checked before any request is ended."""
        ...

    def sleep(self, *, keep_params: bool) -> None:
        """Release the device memory between two steps; requests wait for recomputation."""

    def wake_params(self) -> None:
        """Copy the weights back from host memory, if they were kept there."""

    def wake_cache(self) -> None:
        """Allocate the KV cache and the slots, zeroed."""

    def close(self) -> None:
        """Abort everything and free the device memory; safe to call again."""
