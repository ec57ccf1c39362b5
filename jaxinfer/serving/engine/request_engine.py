"""What the drivers need of an engine, be it one or a group of replicas."""

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from jaxinfer.errors import JaxinferError
from jaxinfer.outputs import RequestOutput
from jaxinfer.serving.engine.metrics import EngineCounts
from jaxinfer.serving.requests.new_request import NewRequest


@runtime_checkable
class RequestEngine(Protocol):
    """Takes requests and advances them; one thread at a time. See `Engine`."""

    @property
    def has_unfinished(self) -> bool:
        """Whether a request runs, waits, or has outputs that nobody took yet."""
        ...

    @property
    def failure(self) -> JaxinferError | None:
        """Why it takes no request any more; any thread may ask."""
        ...

    def counts(self) -> EngineCounts:
        """What it has done and holds; any thread may ask."""
        ...

    def add(self, request: NewRequest) -> None:
        """Enqueue a request."""

    def abort(self, request_id: str) -> bool:
        """End a request now; whether there was an unfinished one of that id."""
        ...

    def step(self) -> None:
        """Advance every request that can be, and hand out what that brought."""

    def take_outputs(self) -> list[RequestOutput]:
        """Outputs of requests without a sink, since the last call."""
        ...

    def update_params(self, params: Mapping[str, Any]) -> None:
        """Swap the weights between two steps."""

    def reset_prefix_cache(self) -> None:
        """Stop finding what was computed so far."""

    @property
    def can_sleep(self) -> bool:
        """Whether `sleep` is possible; asked before any request ends for it."""
        ...

    def sleep(self, *, keep_params: bool) -> None:
        """Give back the device memory between two steps; requests wait, to be computed again."""

    def wake_params(self) -> None:
        """Take the weights back from host memory, if any are there."""

    def wake_cache(self) -> None:
        """Allocate the KV cache and the slots, zeroed."""

    def close(self) -> None:
        """Abort everything and free the device memory; safe to call again."""
