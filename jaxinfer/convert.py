"""`jaxinfer convert`: a model directory from safetensors to Orbax, or back, or from GGUF."""

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from jaxinfer.cli.flags.parser import CommandParser
from jaxinfer.cli.process import OK, end_process, run_command
from jaxinfer.config import QUANTIZATION_SCHEMES

if TYPE_CHECKING:
    from pathlib import Path

_EPILOG = """examples:
  jaxinfer convert Qwen/Qwen3-0.6B qwen3-orbax
  jaxinfer convert qwen3-orbax qwen3-safetensors --dtype float32
  jaxinfer convert Qwen/Qwen3-8B qwen3-8b-fp8 --quantize fp8
  jaxinfer convert SmolLM2-135M-Instruct.Q8_0.gguf smollm2"""


def build_parser() -> CommandParser:
    """The flags of `jaxinfer convert`."""
    parser = CommandParser(
        "convert",
        "Convert a model directory between safetensors and Orbax, or a GGUF file to safetensors. "
        "A classifier keeps its head.",
        _EPILOG,
    )
    parser.add_argument("model", help="directory or hub id of the model to read, or a GGUF file")
    parser.add_argument("output", help="directory to write; must not hold files")
    parser.add_argument(
        "--to",
        choices=["safetensors", "orbax"],
        help="format to write (default: the one the model is not in)",
    )
    parser.add_argument(
        "--dtype",
        choices=["float32", "bfloat16", "float16"],
        help="dtype of the written weights (default: the one config.json names; bfloat16 for GGUF)",
    )
    parser.add_argument(
        "--quantize",
        choices=QUANTIZATION_SCHEMES,
        metavar="SCHEME",
        help="round plain weights, written as compressed-tensors has them: "
        f"{', '.join(QUANTIZATION_SCHEMES)} (default: leave them)",
    )
    parser.add_argument("--revision", help="branch, tag or commit on the hub (default: main)")
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress bar, no summary")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    arguments = build_parser().parse_args(argv)
    return run_command("convert", lambda: _run(arguments))


def _run(arguments: argparse.Namespace) -> int:
    from pathlib import Path

    from jaxinfer.cli.platform import start_platform

    start_platform()
    from jaxinfer.progress import ProgressBar

    output, shown = Path(arguments.output), not arguments.quiet
    try:
        with ProgressBar(None, "Loading", enabled=shown, unit="B", unit_scale=True) as bar:
            written = _convert(arguments, output, bar.advance_to)
    except KeyboardInterrupt:
        print(f"interrupted; {output} was not written", file=sys.stderr, flush=True)
        raise
    if not arguments.quiet:
        print(f"wrote {output} ({written})", file=sys.stderr)
    return OK


def _convert(
    arguments: argparse.Namespace, output: "Path", progress: Callable[[int, int], None]
) -> str:
    """Write the directory; returns its format."""
    from jaxinfer.model.checkpoint.conversion import convert_directory
    from jaxinfer.model.checkpoint.hub import gguf_file, resolve_model

    to, dtype = arguments.to, arguments.dtype
    file = gguf_file(arguments.model)
    if file is None:
        source = resolve_model(arguments.model, arguments.revision)
        return convert_directory(source, output, to, dtype, progress, arguments.quantize)
    if arguments.quantize is not None:
        raise ValueError(
            f"--quantize: {file.name} becomes plain safetensors; convert that directory again"
        )
    if to == "orbax":
        raise ValueError(
            f"--to orbax: {file.name} becomes safetensors; convert that directory to Orbax"
        )
    from jaxinfer.model.checkpoint.gguf.conversion import convert_gguf

    convert_gguf(file, output, dtype, progress)
    return "safetensors"


if __name__ == "__main__":
    end_process(main(sys.argv[1:]))
