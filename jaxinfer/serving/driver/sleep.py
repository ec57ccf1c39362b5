"""State machine of sleep and pause: each call raises before it changes anything."""

from collections.abc import Iterable
from typing import Any, get_args

from jaxinfer.serving.driver.sleep_state import TAGS, PauseMode, SleepState, SleepTag, listed

_SLEEPING_PARTS: dict[int, frozenset[SleepTag]] = {
    0: frozenset({"scheduling"}),
    1: frozenset(TAGS),
    2: frozenset(TAGS),
}


def check_sleeps_not(state: SleepState) -> None:
    """Raise RuntimeError if a part sleeps already."""
    if state.asleep:
        parts = listed(state.asleep)
        raise RuntimeError(f"the engine is already asleep ({parts}); call wake_up() first")


def check_takes_params(state: SleepState) -> None:
    """Raise RuntimeError while the weights sleep."""
    if "weights" in state.asleep:
        raise RuntimeError("the weights sleep; call wake_up(['weights']) before update_params")


def fall_asleep(state: SleepState, level: int) -> None:
    """Mark the parts of a level as asleep."""
    state.asleep = _SLEEPING_PARTS[level]
    state.lacks_weights = state.lacks_weights or level == 2


def parts_to_wake(state: SleepState, tags: Iterable[SleepTag] | None) -> tuple[SleepTag, ...]:
    """The parts that `wake_up` wakes, in the order of `TAGS`; None means all sleeping parts.

    Once weights and KV cache are awake, scheduling resumes too.

    Raises:
        TypeError: tags are not a list of strings.
        ValueError: a tag is unknown, or the list is empty.
        RuntimeError: a part does not sleep, or scheduling would resume without the others.
    """
    if not state.asleep:
        raise RuntimeError("the engine is not asleep, so there is nothing to wake up")
    wanted = state.asleep if tags is None else check_tags(tags)
    if awake := wanted - state.asleep:
        raise RuntimeError(f"{listed(awake)} is not asleep; asleep: {listed(state.asleep)}")
    left = state.asleep - wanted
    if "scheduling" in wanted and left:
        raise RuntimeError(f"scheduling can't resume while {listed(left)} sleeps; wake it too")
    return _ordered(state.asleep if left == {"scheduling"} else wanted)


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
    """The tags as a set; raises as `parts_to_wake`."""
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
