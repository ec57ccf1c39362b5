"""State machine of sleep and pause: which parts of an engine sleep, and which calls are legal."""

from collections.abc import Iterable
from typing import Any, Literal, get_args

from jaxinfer.errors import EngineUnavailableError

PauseMode = Literal["abort", "wait", "keep"]
"""The fate of unfinished requests: they end at once, finish first, or continue afterwards."""

SleepTag = Literal["weights", "kv_cache", "scheduling"]
"""A part of an engine that can sleep, as named in `wake_up`."""

TAGS: tuple[SleepTag, ...] = get_args(SleepTag)
_SLEEPING_PARTS: dict[int, frozenset[SleepTag]] = {
    0: frozenset({"scheduling"}),
    1: frozenset(TAGS),
    2: frozenset(TAGS),
}


class SleepState:
    """The sleeping parts; each method raises before it changes anything.

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

    def check_sleeps_not(self) -> None:
        """Raise RuntimeError if a part sleeps already."""
        if self.asleep:
            parts = self._parts()
            raise RuntimeError(f"the engine is already asleep ({parts}); call wake_up() first")

    def check_can_run(self) -> None:
        """Raise EngineUnavailableError unless `resume` alone would let new requests run."""
        if self.asleep - {"scheduling"}:
            raise EngineUnavailableError(
                f"the engine is asleep ({self._parts()}); call wake_up() first"
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

    def check_takes_params(self) -> None:
        """Raise RuntimeError while the weights sleep."""
        if "weights" in self.asleep:
            raise RuntimeError("the weights sleep; call wake_up(['weights']) before update_params")

    def fall_asleep(self, level: int) -> None:
        """Mark the parts of a level as asleep."""
        self.asleep = _SLEEPING_PARTS[level]
        self.lacks_weights = self.lacks_weights or level == 2

    def parts_to_wake(self, tags: Iterable[SleepTag] | None) -> tuple[SleepTag, ...]:
        """The parts that `wake_up` wakes, in the order of `TAGS`; None means all sleeping parts.

        Once weights and KV cache are awake, scheduling resumes too.

        Raises:
            TypeError: tags are not a list of strings.
            ValueError: a tag is unknown, or the list is empty.
            RuntimeError: a part does not sleep, or scheduling would resume without the others.
        """
        if not self.asleep:
            raise RuntimeError("the engine is not asleep, so there is nothing to wake up")
        wanted = self.asleep if tags is None else check_tags(tags)
        if awake := wanted - self.asleep:
            raise RuntimeError(f"{_listed(awake)} is not asleep; asleep: {self._parts()}")
        left = self.asleep - wanted
        if "scheduling" in wanted and left:
            raise RuntimeError(f"scheduling can't resume while {_listed(left)} sleeps; wake it too")
        return _ordered(self.asleep if left == {"scheduling"} else wanted)

    def wake(self, tag: SleepTag) -> None:
        """Mark a part as awake."""
        self.asleep -= {tag}

    def _parts(self) -> str:
        return _listed(self.asleep)


def check_level(level: Any) -> None:
    """Raise ValueError unless it is 0, 1 or 2."""
    if isinstance(level, bool) or level not in _SLEEPING_PARTS:
        raise ValueError(
            "level must be 0 (stop scheduling), 1 (weights to the host, KV cache dropped) or 2 "
            f"(both dropped), got {level!r}"
        )


def check_mode(mode: Any) -> None:
    """Raise ValueError unless it is a `PauseMode`."""
    if mode not in get_args(PauseMode):
        raise ValueError(f"mode must be 'abort', 'wait' or 'keep', got {mode!r}")


def check_tags(tags: Any) -> frozenset[SleepTag]:
    """The tags as a set; raises as `SleepState.parts_to_wake`."""
    if isinstance(tags, str) or not isinstance(tags, Iterable):
        raise TypeError(f"tags must be a list of strings or None, got {tags!r}")
    given = list(tags)
    for tag in given:
        if tag not in TAGS:
            raise ValueError(f"unknown tag {tag!r}; tags are {', '.join(TAGS)}")
    if not given:
        raise ValueError("tags are empty; leave them out to wake everything")
    return frozenset(given)


def _ordered(tags: Iterable[SleepTag]) -> tuple[SleepTag, ...]:
    return tuple(sorted(tags, key=TAGS.index))


def _listed(tags: Iterable[SleepTag]) -> str:
    return ", ".join(_ordered(tags))
