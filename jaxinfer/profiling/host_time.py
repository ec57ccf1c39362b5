"""Sums the host's time by part of a step; time in nested spans counts for the inner one."""

from collections.abc import Sequence

from jaxinfer.profiling.parts import HOST_SPANS
from jaxinfer.profiling.trace.xplane import Span


def host_seconds(spans: Sequence[Span]) -> dict[str, float]:
    """Seconds by name, all of `HOST_SPANS`; time in a nested span counts for that one only.

    Args:
        spans: of one thread, in the order of their beginnings.
    """
    seconds: dict[str, float] = dict.fromkeys(HOST_SPANS, 0.0)
    for index, span in enumerate(spans):
        if span.name not in seconds:
            continue
        end = span.start_ns + span.duration_ns
        seconds[span.name] += span.duration_ns * 1e-9
        outer = _enclosing(spans[:index], span.start_ns, end)
        if outer is not None and outer.name in seconds:
            seconds[outer.name] -= span.duration_ns * 1e-9
    return seconds


def _enclosing(earlier: Sequence[Span], start_ns: float, end_ns: float) -> Span | None:
    """The innermost of earlier spans that holds the given time."""
    return next(
        (
            span
            for span in reversed(earlier)
            if span.start_ns <= start_ns and end_ns <= span.start_ns + span.duration_ns
        ),
        None,
    )
