"""The queue of requests whose constraints are being compiled, in front of an engine."""

from collections.abc import Collection, Sequence
from concurrent.futures import Future

from jaxinfer.serving.constraints.constraint import ConstraintSource
from jaxinfer.serving.requests.new_request import NewRequest


class ConstraintQueue:
    """Used in the engine's thread alone, but for `compile` and `start`.

    Args:
        source: compiles in threads of its own; None leaves it to the engine.
    """

    def __init__(self, source: ConstraintSource | None) -> None:
        self._source = source
        self._labels: dict[str, str] = {}
        self._aborted: set[str] = set()

    def __len__(self) -> int:
        return len(self._labels)

    def start(self, requests: Sequence[NewRequest]) -> Future[None] | None:
        """Have requests' constraints compiled: see `ConstraintSource.start_all`."""
        if self._source is None:
            return None
        return self._source.start_all(each.params for each in requests)

    def compile(self, requests: Sequence[NewRequest]) -> None:
        """Wait until constraints are compiled; raises what the first that fails raises."""
        if (compiled := self.start(requests)) is not None:
            compiled.result()

    def hold(self, requests: Sequence[NewRequest]) -> None:
        """Let requests wait."""
        self._labels.update({each.key: each.label for each in requests})

    def abort(self, labels: Collection[str]) -> None:
        """Note that the requests of these labels are to be aborted when they are taken."""
        self._aborted.update(key for key, label in self._labels.items() if label in labels)

    def drop(self, key: str) -> None:
        """Forget a request, if it waits."""
        self._labels.pop(key, None)
        self._aborted.discard(key)

    def take(self, requests: Sequence[NewRequest]) -> tuple[list[NewRequest], list[str]]:
        """End the wait of requests: those not dropped, and the keys of the aborted among them."""
        taken = [each for each in requests if each.key in self._labels]
        aborted = [each.key for each in taken if each.key in self._aborted]
        for each in taken:
            self.drop(each.key)
        return taken, aborted
