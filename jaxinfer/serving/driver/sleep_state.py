"""Which parts of an engine sleep, and whether it may run steps and take requests meanwhile."""

from collections.abc import Iterable
from typing import Literal, get_args

from jaxinfer.errors import EngineUnavailableError

PauseMode = Literal["abort", "wait", "keep"]
"""The fate of unfinished requests: they end at once, finish first, or continue afterwards."""

SleepTag = Literal["weights", "kv_cache", "scheduling"]
"""A part of an engine that can sleep, as named in `wake_up`."""

TAGS: tuple[SleepTag, ...] = get_args(SleepTag)


class SleepState:
    """The sleeping parts; `sleep.py` changes them.

    Attributes:
        asleep: the sleeping parts.
        is_paused: whether `pause` was called, and `resume` was not.
        refuses: whether requests that come meanwhile are refused, and don't wait.
        lacks_weights: whether the weights were dropped and not replaced yet.
    """

    def __init__(self) -> None:
        self.asleep: frozenset[SleepTag] = frozenset()
        self.is_paused = False
        self.refuses = False
        self.lacks_weights = False

    @property
    def may_step(self) -> bool:
        """Whether the engine may run a step."""
        return not (self.asleep or self.is_paused or self.lacks_weights)

    def check_can_run(self) -> None:
        """Raise EngineUnavailableError unless `resume` alone would let new requests run."""
        if self.asleep - {"scheduling"}:
            raise EngineUnavailableError(
                f"the engine is asleep ({listed(self.asleep)}); call wake_up() first"
            )
        if self.lacks_weights:
            raise EngineUnavailableError(
                "sleep(level=2) dropped the weights; call update_params() first"
            )

    def check_takes_requests(self) -> None:
        """Raise EngineUnavailableError unless new requests may at least wait."""
        self.check_can_run()
        if self.refuses:
            raise EngineUnavailableError(
                "the engine is paused and takes no requests until resume()"
            )


def listed(tags: Iterable[SleepTag]) -> str:
    """Parts by name, in the order of `TAGS`."""
    return ", ".join(sorted(tags, key=TAGS.index))
