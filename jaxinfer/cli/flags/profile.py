"""The flags of `jaxinfer profile`: which steps of which batch, and where the record goes."""

import argparse
from typing import TYPE_CHECKING

from jaxinfer.cli.flags.parser import positive_integer
from jaxinfer.planning.named_shapes import SERVED_SHAPES

if TYPE_CHECKING:
    from jaxinfer.profiling.schedule import ProfileSchedule

_SCHEDULE = ("wait", "warmup", "active", "repeat")


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
        help="then run the batch again and record what holds the memory (memory.txt, .json, .svg)",
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
    for name, default, what in (
        ("wait", 0, "run as always at first"),
        ("warmup", 0, "then trace and drop"),
        ("active", 5, "then record: one prefill and decodes"),
        ("repeat", 1, "how often all this is done"),
    ):
        steps.add_argument(
            f"--{name}", type=int, default=default, help=f"{what} (default: {default})"
        )


def profile_schedule(namespace: argparse.Namespace) -> "ProfileSchedule":
    """The schedule that the flags ask for.

    Raises:
        ValueError: a number is too small.
    """
    from jaxinfer.profiling.schedule import ProfileSchedule

    return ProfileSchedule(**{name: getattr(namespace, name) for name in _SCHEDULE})
