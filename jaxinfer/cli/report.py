"""Prints a command's report: as JSON for programs, or as lines for people."""

import json
from collections.abc import Callable, Iterable
from typing import Any


def print_report(report: Any, lines: Callable[[Any], Iterable[str]], *, as_json: bool) -> None:
    """Print a report on standard output.

    Args:
        report: JSON-like values.
        lines: makes the lines for people.
        as_json: print indented JSON instead of lines.
    """
    print(json.dumps(report, indent=2) if as_json else "\n".join(lines(report)))
