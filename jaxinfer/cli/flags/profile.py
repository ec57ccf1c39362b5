"""The flags of `jaxinfer profile`: which steps of which batch, and where the record goes."""

import argparse
import dataclasses
from typing import Any

from jaxinfer.cli.flags.fields import add_field_flag
from jaxinfer.cli.flags.parser import given, positive_integer
from jaxinfer.planning.named_shapes import SERVED_SHAPES
from jaxinfer.profiling.schedule import ProfileSchedule

_SCHEDULE = frozenset(field.name for field in dataclasses.fields(ProfileSchedule))


def add_profile_flags(parser: argparse.ArgumentParser) -> None:
    """Add all flags but those of the engine."""
    parser.add_argument(
        "--output",
        metavar="DIR",
        default="jaxinfer-profile",
        help="takes the trace and the report (default: jaxinfer-profile)",
    )
    parser.add_argument(
        "--memory",
        action="store_true",
        help="report what holds the memory, too (memory.txt, memory.json)",
    )
    parser.add_argument("--json", action="store_true", help="print the report as one JSON object")
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress, no report")
    batch = parser.add_argument_group("batch")
    batch.add_argument(
        "--model-shape",
        choices=SERVED_SHAPES,
        help="random weights of this Qwen3's shape (default: a model's own)",
    )
    batch.add_argument("--sequences", type=positive_integer, default=4, help="at once (default: 4)")
    batch.add_argument(
        "--prompt-tokens",
        type=positive_integer,
        default=128,
        help="random token ids of each prompt (default: 128)",
    )
    steps = parser.add_argument_group("steps of the engine, as in torch's profiler.schedule")
    for field in dataclasses.fields(ProfileSchedule):
        add_field_flag(steps, ProfileSchedule, field.name, flagged=())


def profile_schedule(namespace: argparse.Namespace) -> ProfileSchedule:
    """The schedule that the flags ask for.

    Raises:
        ValueError: a number is too small.
    """
    fields: dict[str, Any] = given(namespace, _SCHEDULE)
    return ProfileSchedule(**fields)
