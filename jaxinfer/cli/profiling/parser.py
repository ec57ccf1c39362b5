"""The parser of `jaxinfer profile`, for its own process and for those that it starts."""

from jaxinfer.cli.flags.engine import add_engine_flags
from jaxinfer.cli.flags.parser import CommandParser
from jaxinfer.cli.flags.profile import add_profile_flags

_EXAMPLES = """examples:
  jaxinfer profile
  jaxinfer profile --model Qwen/Qwen3-0.6B --sequences 64 --prompt-tokens 512 --output slow
  jaxinfer profile --model-shape 8b --active 3 --json

DIR holds report.txt, report.json, and in cycle-1 the trace:
trace.json.gz opens in ui.perfetto.dev, and `xprof DIR/cycle-1` shows the rest."""


def build_parser() -> CommandParser:
    """The flags of `jaxinfer profile`."""
    description = (
        "Record a few steps of a batch (one prefill and four decodes) and report by part of the "
        "model and by kernel: calls, time, bytes, operations, and the share of what the device "
        "can do. On a GPU the recorded steps run without CUDA graphs, and the report says by how "
        "much that slows them."
    )
    parser = CommandParser("profile", description, _EXAMPLES)
    add_profile_flags(parser)
    add_engine_flags(
        parser,
        defaults={
            "max_num_seqs": "--sequences",
            "max_model_len": "what the batch needs",
            "compile_ahead": "no: only the batch's programs are compiled",
        },
    )
    return parser
