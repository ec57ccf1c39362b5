"""`jaxinfer list`: the models in Hugging Face's cache, and the families that run them."""

import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from jaxinfer.cli.flags.parser import CommandParser
from jaxinfer.cli.process import OK, end_process, run_command

if TYPE_CHECKING:
    import argparse

    from jaxinfer.model.checkpoint.hub_cache import CachedModel

_EPILOG = """A line for each revision. "last used" is when a file of it was last read, as far as the
file system keeps such times; "runs" is the family that runs it, or why none does. Two small models
need no cache: bundled, the default of every command, and bundled-experts."""
_LONGEST_OBSTACLE = 60


def build_parser() -> CommandParser:
    """The flags of `jaxinfer list`."""
    parser = CommandParser("list", "List the models in Hugging Face's local cache.", _EPILOG)
    parser.add_argument("--json", action="store_true", help="print one JSON list")
    parser.add_argument("-q", "--quiet", action="store_true", help="names alone, a line each")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    arguments = build_parser().parse_args(argv)
    return run_command("list", lambda: _run(arguments))


def _run(arguments: "argparse.Namespace") -> int:
    from jaxinfer.model.checkpoint.hub_cache import broken_models, cached_models

    models = cached_models()
    if arguments.json:
        print(json.dumps([_object(model) for model in models], indent=2))
        return OK
    if arguments.quiet:
        print("".join(f"{name}\n" for name in dict.fromkeys(m.name for m in models)), end="")
        return OK
    if models:
        print("\n".join(_table(models)))
    else:
        print("no models in the cache; `jaxinfer pull NAME` downloads one", file=sys.stderr)
    for name in broken_models():
        print(
            f"{name}: what a cut download left; pull it again, or `jaxinfer rm` it", file=sys.stderr
        )
    return OK


def _table(models: "Sequence[CachedModel]") -> list[str]:
    from jaxinfer.model.checkpoint.byte_sizes import size_text
    from jaxinfer.profiling.figures import aligned

    rows = [
        (
            model.name,
            " ".join([*model.refs, model.commit[:8]]),
            size_text(model.num_bytes),
            f"{datetime.fromtimestamp(model.last_used):%Y-%m-%d %H:%M}",
            model.family or f"no: {_short(model.obstacle or '')}",
        )
        for model in models
    ]
    return aligned(
        [("model", "revision", "size", "last used", "runs"), *rows], left=2, last_left=True
    )


def _short(obstacle: str) -> str:
    if len(obstacle) <= _LONGEST_OBSTACLE:
        return obstacle
    return f"{obstacle[: _LONGEST_OBSTACLE - 3].rstrip()}..."


def _object(model: "CachedModel") -> dict[str, Any]:
    return {
        "model": model.name,
        "commit": model.commit,
        "refs": list(model.refs),
        "bytes": model.num_bytes,
        "last_used": datetime.fromtimestamp(model.last_used, UTC).isoformat(timespec="seconds"),
        "directory": str(model.directory),
        "family": model.family,
        "obstacle": model.obstacle,
    }


if __name__ == "__main__":
    end_process(main(sys.argv[1:]))
