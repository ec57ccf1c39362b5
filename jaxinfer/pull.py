"""`jaxinfer pull`: downloads a model into Hugging Face's cache, after its size and licence."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from jaxinfer.cli.flags.parser import CommandParser
from jaxinfer.cli.process import OK, end_process, run_command

if TYPE_CHECKING:
    import argparse

    from jaxinfer.model.checkpoint.hub_model import HubFile, HubModel

_EPILOG = """examples:
  jaxinfer pull Qwen/Qwen3-0.6B
  jaxinfer pull Qwen/Qwen3-0.6B --revision main -q

Size and licence go to stderr, and the directory of the model to stdout. A model that no family runs
is refused before anything is downloaded; `hf download` takes any. After an interruption run the
command again: complete files are kept."""


def build_parser() -> CommandParser:
    """The flags of `jaxinfer pull`."""
    parser = CommandParser(
        "pull", "Download a model from the Hugging Face hub into its local cache.", _EPILOG
    )
    parser.add_argument("model", help="hub id, such as Qwen/Qwen3-0.6B")
    parser.add_argument("--revision", help="branch, tag or commit on the hub (default: main)")
    parser.add_argument(
        "-q", "--quiet", action="store_true", help="no size, no licence, no progress bars"
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    arguments = build_parser().parse_args(argv)
    return run_command("pull", lambda: _run(arguments))


def _run(arguments: "argparse.Namespace") -> int:
    from jaxinfer.model.checkpoint.hub_model import (
        check_disk_space,
        check_runs,
        download,
        find_on_hub,
    )

    model = find_on_hub(arguments.model, arguments.revision)
    family = check_runs(model)
    if arguments.quiet:
        from huggingface_hub.utils import disable_progress_bars

        disable_progress_bars()
    else:
        print("\n".join(_summary(model, family)), file=sys.stderr, flush=True)
    check_disk_space(model)
    print(download(model) if arguments.quiet else download(model, _show_file))
    return OK


def _show_file(file: "HubFile") -> None:
    from jaxinfer.model.checkpoint.byte_sizes import size_text

    print(f"{file.name} ({size_text(file.num_bytes)})", file=sys.stderr, flush=True)


def _summary(model: "HubModel", family: str) -> list[str]:
    from jaxinfer.cli.answers.statistics import count
    from jaxinfer.model.checkpoint.byte_sizes import size_text

    size = f"{size_text(model.num_bytes)} in {count(len(model.files), 'file')}"
    to_fetch = f"{size_text(model.missing_bytes)} to download"
    if not model.missing:
        to_fetch = "all in the local cache already"
    return [
        f"{model.name} at {model.commit[:12]}: {size}, {to_fetch}",
        f"family {family}, licence {model.licence or 'not stated by the model card'}",
    ]


if __name__ == "__main__":
    end_process(main(sys.argv[1:]))
