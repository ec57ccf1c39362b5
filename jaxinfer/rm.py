"""`jaxinfer rm`: removes a model from Hugging Face's cache, after a question."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from jaxinfer.cli.flags.parser import CommandParser
from jaxinfer.cli.process import FAILED, OK, end_process, run_command

if TYPE_CHECKING:
    import argparse

    from jaxinfer.model.checkpoint.hub_cache import Removal

_EPILOG = """examples:
  jaxinfer rm Qwen/Qwen3-0.6B
  jaxinfer rm Qwen/Qwen3-0.6B --revision main -y

exit status: 0, or 1 if nothing was removed"""


def build_parser() -> CommandParser:
    """The flags of `jaxinfer rm`."""
    parser = CommandParser("rm", "Remove a model from Hugging Face's local cache.", _EPILOG)
    parser.add_argument("model", help="hub id, as `jaxinfer list` shows it")
    parser.add_argument(
        "--revision",
        help="remove one revision alone: a branch, a tag, or a commit or its beginning "
        "(default: all of them)",
    )
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask")
    parser.add_argument("-q", "--quiet", action="store_true", help="do not say what was freed")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    arguments = build_parser().parse_args(argv)
    return run_command("rm", lambda: _run(arguments))


def _run(arguments: "argparse.Namespace") -> int:
    from jaxinfer.model.checkpoint.byte_sizes import size_text
    from jaxinfer.model.checkpoint.hub_cache import find_removal

    removal = find_removal(arguments.model, arguments.revision)
    if not arguments.yes and not _is_confirmed(removal):
        print("nothing was removed", file=sys.stderr)
        return FAILED
    removal.execute()
    if not arguments.quiet:
        print(f"freed {size_text(removal.num_bytes)}", file=sys.stderr)
    return OK


def _is_confirmed(removal: "Removal") -> bool:
    """Ask at the terminal; ValueError if standard input is none."""
    from jaxinfer.cli.answers.statistics import count
    from jaxinfer.model.checkpoint.byte_sizes import size_text

    if sys.stdin is None or not sys.stdin.isatty():
        raise ValueError("standard input is no terminal to ask at; -y removes without a question")
    what = count(len(removal.commits), "revision") if removal.commits else "a cut download"
    question = f"remove {removal.name} ({what}, {size_text(removal.num_bytes)})? [y/N] "
    print(question, end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


if __name__ == "__main__":
    end_process(main(sys.argv[1:]))
