"""`jaxinfer embed`: the texts of a file as vectors, into an array of NumPy or JSON lines."""

import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxinfer.cli.flags.engine import ADAPTER_FIELDS, add_engine_flags
from jaxinfer.cli.flags.parser import CommandParser
from jaxinfer.cli.flags.process import is_first_process, is_one_of_several, process_arguments
from jaxinfer.cli.process import OK, end_process, run_command

if TYPE_CHECKING:
    import argparse

    from jaxinfer.cli.prompts import PromptLine
    from jaxinfer.outputs import EmbeddingOutput

_SUFFIXES = (".npy", ".jsonl")
_DEFAULTS = {"compile_ahead": False, "runner": "pooling"}
_INDEX = re.compile(r"prompts\[(\d+)\]")

_EXAMPLES = """examples:
  jaxinfer embed texts.txt --output vectors.npy
  jaxinfer embed questions.jsonl --output vectors.jsonl --prompt-name query
  jaxinfer embed texts.txt --output vectors.npy --model Qwen/Qwen3-Embedding-0.6B \\
    --hf-overrides '{"is_matryoshka": true}' --dimensions 256"""


def build_parser() -> CommandParser:
    """The flags of `jaxinfer embed`."""
    parser = CommandParser("embed", "Write the vectors of texts, one for each line.", _EXAMPLES)
    parser.add_argument(
        "file",
        metavar="FILE",
        help='one text a line, or .jsonl with strings or {"prompt": ...}, which may hold an "id" '
        '("-" reads standard input)',
    )
    parser.add_argument(
        "--output",
        required=True,
        metavar="FILE",
        help="a new file: .npy, a float32 array with a row for each text, or .jsonl, objects with "
        '"prompt", "id" and "embedding" (default: none; it must be given)',
    )
    parser.add_argument(
        "--dimensions",
        type=int,
        metavar="N",
        help="leading values to keep, of a model that is trained for it (default: all)",
    )
    parser.add_argument(
        "--prompt-name", help="prompt of the model to put in front of each text (default: none)"
    )
    parser.add_argument(
        "--no-normalize", action="store_true", help="leave the lengths of vectors as they are"
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="print only errors")
    own = {"compile_ahead": "at first use", "runner": "pooling"}
    add_engine_flags(parser, defaults=own, without=ADAPTER_FIELDS)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = build_parser()
    arguments = parser.parse_args(argv)
    if Path(arguments.output).suffix not in _SUFFIXES:
        parser.error(f"--output must end in {' or '.join(_SUFFIXES)}, got {arguments.output}")
    return run_command("embed", lambda: _run(arguments))


def _run(arguments: "argparse.Namespace") -> int:
    from jaxinfer.cli.engine import open_engine
    from jaxinfer.cli.platform import start_platform

    lines: list[PromptLine] = []
    is_several = is_one_of_several(arguments)
    if not is_several:
        lines = _read(arguments)
    start_platform(process_arguments(arguments))
    # Other processes learn of an error only from a process that they are connected to.
    if is_several and is_first_process():
        lines = _read(arguments)
    with open_engine(arguments, _DEFAULTS, quiet=arguments.quiet) as llm:
        if llm.follows:
            llm.follow()
            return OK
        outputs = _embed(llm, lines, arguments)
    output = Path(arguments.output)
    _write_new(output, _array if output.suffix == ".npy" else _json_lines, lines, outputs)
    if not arguments.quiet:
        tokens = sum(len(each.token_ids) for each in outputs)
        size = len(outputs[0].embedding)
        print(f"{output}: {len(outputs)} vectors of {size}, {tokens} tokens", file=sys.stderr)
    return OK


def _read(arguments: "argparse.Namespace") -> "list[PromptLine]":
    """The texts, once the place of their vectors is free."""
    from jaxinfer.cli.prompts import read_prompts

    output = Path(arguments.output)
    if output.exists():
        raise ValueError(f"{output}: exists; give a new file as --output")
    if not output.parent.is_dir():
        raise ValueError(f"{output.parent}: no such directory")
    lines = read_prompts(None, arguments.file)
    for line in lines:
        if line.sampling:
            raise ValueError(f"{line.where}: {min(line.sampling)} has no effect on a vector")
    return lines


def _embed(
    llm: Any, lines: "list[PromptLine]", arguments: "argparse.Namespace"
) -> "list[EmbeddingOutput]":
    """The vectors; errors name lines and flags."""
    from jaxinfer.cli.flags.names import in_flags

    try:
        return llm.embed(
            [line.text for line in lines],
            dimensions=arguments.dimensions,
            prompt_name=arguments.prompt_name,
            normalize=not arguments.no_normalize,
            use_tqdm=not arguments.quiet,
        )
    except ValueError as error:
        text = _INDEX.sub(lambda found: lines[int(found[1])].where, in_flags(str(error)))
        for name in ("dimensions", "prompt_name"):
            if text.startswith(name):
                text = "--" + name.replace("_", "-") + text.removeprefix(name)
        raise ValueError(text) from None


def _write_new(
    path: Path,
    content: "Callable[[list[PromptLine], list[EmbeddingOutput]], bytes]",
    lines: "list[PromptLine]",
    outputs: "list[EmbeddingOutput]",
) -> None:
    """Write a file that does not exist yet: all of it or nothing; OSError if it does by now."""
    data = content(lines, outputs)
    with path.open("xb") as file:
        try:
            file.write(data)
            file.flush()
        except BaseException:
            path.unlink()
            raise


def _array(lines: "list[PromptLine]", outputs: "list[EmbeddingOutput]") -> bytes:
    """A .npy file, float32 ``[texts, E]``."""
    import io

    import numpy as np

    buffer = io.BytesIO()
    np.save(buffer, np.stack([each.embedding for each in outputs]), allow_pickle=False)
    return buffer.getvalue()


def _json_lines(lines: "list[PromptLine]", outputs: "list[EmbeddingOutput]") -> bytes:
    """An object a line, as UTF-8."""
    from jaxinfer.cli.answers.json_lines import json_line

    records = [
        {"prompt": line.text, "id": line.id, "embedding": output.embedding.tolist()}
        for line, output in zip(lines, outputs, strict=True)
    ]
    return "".join(json_line(record) + "\n" for record in records).encode()


if __name__ == "__main__":
    end_process(main(sys.argv[1:]))
