"""The parser of `jaxinfer profile`, for its own process and for the processes that it starts."""

import argparse
import dataclasses
from typing import Any

from jaxinfer.cli.flags.engine import ADAPTER_NEEDS, add_engine_flags
from jaxinfer.cli.flags.fields import add_field_flag, given
from jaxinfer.cli.flags.parser import CommandParser, positive_integer
from jaxinfer.planning.named_shapes import SERVED_SHAPES
from jaxinfer.profiling.schedule import ProfileSchedule

_EXAMPLES = """examples:
  jaxinfer profile
  jaxinfer profile --model Qwen/Qwen3-0.6B --sequences 64 --prompt-tokens 512 --output slow
  jaxinfer profile --model-shape 8b --active 3 --json
  jaxinfer profile --model-shape 0.6b --runner pooling --sequences 32 --prompt-tokens 512

DIR holds report.txt, report.json, and in cycle-1 the trace:
trace.json.gz opens in ui.perfetto.dev, and `xprof DIR/cycle-1` shows the rest."""

_SCHEDULE = frozenset(field.name for field in dataclasses.fields(ProfileSchedule))


def build_parser() -> CommandParser:
    """The flags of `jaxinfer profile`."""
    description = (
        "Record a few steps of a batch (one prefill and four decodes) and report by part of the "
        "model and by kernel: calls, time, bytes, operations, and the share of what the device "
        "can do. On a GPU the recorded steps run without CUDA graphs, and the report says by how "
        "much that slows them. With --runner pooling the batch's prompts are read, step by step "
        "anew."
    )
    parser = CommandParser("profile", description, _EXAMPLES)
    parser.needs |= ADAPTER_NEEDS
    _add_flags(parser)
    add_engine_flags(
        parser,
        defaults={
            "max_num_seqs": "--sequences",
            "max_model_len": "what the batch needs",
            "compile_ahead": "no: only the batch's programs are compiled",
        },
    )
    return parser


def _add_flags(parser: argparse.ArgumentParser) -> None:
    """Add all flags but those of the engine."""
    parser.add_argument(
        "--output",
        metavar="DIR",
        default="jaxinfer-profile",
        help="directory for the trace and the report (default: jaxinfer-profile)",
    )
    parser.add_argument(
        "--memory",
        action="store_true",
        help="report memory by owner, too (memory.txt, memory.json)",
    )
    parser.add_argument("--json", action="store_true", help="print the report as one JSON object")
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress, no report")
    batch = parser.add_argument_group("batch")
    batch.add_argument(
        "--model-shape",
        choices=SERVED_SHAPES,
        help="random weights of this Qwen3's shape (default: a model's own)",
    )
    batch.add_argument(
        "--sequences", type=positive_integer, default=4, help="in the batch (default: 4)"
    )
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
