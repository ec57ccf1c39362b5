"""`jaxinfer convert`: a model directory in another format, quantized, or with an adapter merged."""

import argparse
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from jaxinfer.cli.engine import speaking_of_flags
from jaxinfer.cli.flags.parser import CommandParser, positive_integer
from jaxinfer.cli.process import OK, end_process, run_command
from jaxinfer.config import QUANTIZATION_SCHEMES

if TYPE_CHECKING:
    from pathlib import Path

    from jaxinfer.model.checkpoint.conversion import Calibrate
    from jaxinfer.model.config import ModelConfig

_MAX_TEXTS, _MAX_TOKENS = 128, 2048
_FLAGS = {"quantization": "--quantize"}
_EPILOG = """examples:
  jaxinfer convert Qwen/Qwen3-0.6B qwen3-orbax
  jaxinfer convert qwen3-orbax qwen3-safetensors --dtype float32
  jaxinfer convert Qwen/Qwen3-8B qwen3-8b-fp8 --quantize fp8
  jaxinfer convert Qwen/Qwen3-8B qwen3-8b-int4 --quantize int4 --calibrate chats.jsonl
  jaxinfer convert Qwen/Qwen3-8B qwen3-8b-sql --merge adapters/sql
  jaxinfer convert SmolLM2-135M-Instruct.Q8_0.gguf smollm2"""


def build_parser() -> CommandParser:
    """The flags of `jaxinfer convert`."""
    parser = CommandParser(
        "convert",
        "Convert a model directory between safetensors and Orbax, or a GGUF file to safetensors; "
        "quantize weights, or merge a LoRA adapter into them. A classifier keeps its head.",
        _EPILOG,
    )
    parser.add_argument(
        "model",
        help="directory or hub id of the model to read, a bundled model's name, or a GGUF file",
    )
    parser.add_argument("output", help="directory to write; must not hold files")
    parser.add_argument(
        "--to",
        choices=["safetensors", "orbax"],
        help="format to write (default: the one the model is not in; safetensors with --quantize "
        "or --merge)",
    )
    parser.add_argument(
        "--dtype",
        choices=["float32", "bfloat16", "float16"],
        help="dtype of the written weights (default: the one config.json names; bfloat16 for GGUF)",
    )
    parser.add_argument(
        "--merge",
        metavar="ADAPTER",
        help="a LoRA adapter's directory, as PEFT saves it, to add to plain weights, before they "
        "are quantized (default: none)",
    )
    parser.add_argument(
        "--quantize",
        choices=QUANTIZATION_SCHEMES,
        metavar="SCHEME",
        help="round plain weights, written as compressed-tensors has them: "
        f"{', '.join(QUANTIZATION_SCHEMES)} (default: leave them)",
    )
    parser.add_argument(
        "--calibrate",
        action="append",
        metavar="FILE",
        help="with --quantize int4, W4A16_ASYM or int8: choose integers by GPTQ, so that outputs "
        'on these texts change the least; .jsonl with a string or {"text": ...} a line, any other '
        "file is one text; may be repeated (default: none, each weight is rounded to the nearest)",
    )
    parser.add_argument(
        "--max-texts",
        type=positive_integer,
        metavar="N",
        help="calibrate on the first N windows of the texts "
        f"(default: {_MAX_TEXTS} with --calibrate)",
    )
    parser.add_argument(
        "--max-tokens",
        type=positive_integer,
        metavar="N",
        help="tokens of a window, in which longer texts are cut "
        f"(default: {_MAX_TOKENS} with --calibrate, or the model's context)",
    )
    parser.add_argument("--revision", help="branch, tag or commit on the hub (default: main)")
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress bar, no summary")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = build_parser()
    arguments = parser.parse_args(argv)
    for flag, needed in (
        ("calibrate", "quantize"),
        ("max_texts", "calibrate"),
        ("max_tokens", "calibrate"),
    ):
        if getattr(arguments, flag) is not None and getattr(arguments, needed) is None:
            parser.error(f"--{flag.replace('_', '-')} needs --{needed}")
    return run_command("convert", lambda: _run(arguments))


def _run(arguments: argparse.Namespace) -> int:
    from pathlib import Path

    from jaxinfer.cli.platform import start_platform

    start_platform()
    from jaxinfer.progress import ProgressBar

    output, shown = Path(arguments.output), not arguments.quiet
    try:
        with speaking_of_flags(_FLAGS), ExitStack() as bars:
            bar = ProgressBar(None, "Loading", enabled=shown, unit="B", unit_scale=True)
            bars.enter_context(bar)
            written = _convert(arguments, output, bar.advance_to, bars.close)
    except KeyboardInterrupt:
        print(f"interrupted; {output} was not written", file=sys.stderr, flush=True)
        raise
    if not arguments.quiet:
        print(f"wrote {output} ({written})", file=sys.stderr)
    return OK


def _convert(
    arguments: argparse.Namespace,
    output: "Path",
    progress: Callable[[int, int], None],
    end_progress: Callable[[], None],
) -> str:
    """Write the directory; returns its format."""
    from pathlib import Path

    from jaxinfer.model.checkpoint.conversion import convert_directory
    from jaxinfer.model.checkpoint.hub import gguf_file, resolve_model

    to, dtype = arguments.to, arguments.dtype
    file = gguf_file(arguments.model)
    if file is None:
        source = resolve_model(arguments.model, arguments.revision)
        calibrate = None
        if arguments.calibrate is not None:
            calibrate = _calibration(arguments, source, end_progress)
        adapter = None if arguments.merge is None else Path(arguments.merge).expanduser()
        return convert_directory(
            source, output, to, dtype, progress, arguments.quantize, calibrate, adapter
        )
    for flag in ("merge", "quantize"):
        if getattr(arguments, flag) is not None:
            raise ValueError(
                f"--{flag}: {file.name} becomes plain safetensors; convert that directory again"
            )
    if to == "orbax":
        raise ValueError(
            f"--to orbax: {file.name} becomes safetensors; convert that directory to Orbax"
        )
    from jaxinfer.model.checkpoint.gguf.conversion import convert_gguf

    convert_gguf(file, output, dtype, progress)
    return "safetensors"


def _calibration(
    arguments: argparse.Namespace, source: "Path", end_loading: Callable[[], None]
) -> "Calibrate":
    """What quantizes a model by the texts that the arguments name; they are read here."""
    from jaxinfer.cli.evaluation.texts import check_ids, read_windows
    from jaxinfer.model.calibration.calibrate import calibrate, check_calibration
    from jaxinfer.model.hf_overrides import decoder_config
    from jaxinfer.model.quantized.quantization import with_scheme
    from jaxinfer.model.text.tokenizer import Tokenizer
    from jaxinfer.progress import ProgressBar

    config = with_scheme(decoder_config(source / "config.json"), arguments.quantize)
    try:
        check_calibration(config)
    except ValueError as error:
        raise ValueError(f"--quantize {arguments.quantize} --calibrate: {error}") from None
    context = config.max_context_length
    max_tokens = arguments.max_tokens or min(_MAX_TOKENS, context)
    if not 2 <= max_tokens <= context:
        raise ValueError(
            f"--max-tokens must be from 2 to {context}, the model's context, got {max_tokens}"
        )
    tokenizer = Tokenizer.from_directory(source)
    most = arguments.max_texts or _MAX_TEXTS
    files = arguments.calibrate
    windows = read_windows(files, tokenizer, tokenizer, max_tokens, most, flag="--calibrate")
    check_ids(windows, source, config.vocab_size)
    texts = [window.token_ids for window in windows]

    def with_bar(params: dict[str, Any], config: "ModelConfig") -> None:
        end_loading()
        shown = not arguments.quiet
        with ProgressBar(None, "Calibrating", enabled=shown, unit="layer") as bar:
            calibrate(params, config.for_context(max_tokens), texts, bar.advance_to)

    return with_bar


if __name__ == "__main__":
    end_process(main(sys.argv[1:]))
