"""Opens a command's engine; its errors name flags instead of Python arguments."""

import argparse
import contextlib
import re
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from jaxinfer.cli.flags.engine import ENGINE_FIELDS, engine_arguments
from jaxinfer.cli.flags.sampling import SAMPLING_FIELDS
from jaxinfer.cli.process import end_at_the_next_interrupt

if TYPE_CHECKING:
    from jaxinfer import LLM

_FIELDS = {name: "--" + name.replace("_", "-") for name in ENGINE_FIELDS | SAMPLING_FIELDS} | {
    "temperature": "--temp",
    "show_progress": "--quiet",
    "enable_prefix_caching": "--no-enable-prefix-caching",
}
# Names with an underscore are matched anywhere, others only as the first word, because "stop" and
# "seed" are also English. Quotes and paths are the user's own text and are left alone.
_NAME = re.compile(r"(?<![\w/.'\"-])(" + "|".join(_FIELDS) + r")(?![\w/'\"]|\.\w)")


def in_flags(message: str) -> str:
    """A message of the library with the flags in place of the names of Python arguments."""

    def flag(match: re.Match[str]) -> str:
        return _FIELDS[match[0]] if "_" in match[0] or match.start() == 0 else match[0]

    return _NAME.sub(flag, message)


@contextlib.contextmanager
def speaking_of_flags() -> Iterator[None]:
    """Turn an error about an argument into one about its flag.

    Raises:
        ValueError: with that message.
    """
    try:
        yield
    except (TypeError, ValueError) as error:
        raise ValueError(in_flags(str(error))) from None


@contextlib.contextmanager
def open_engine(
    arguments: argparse.Namespace, defaults: Mapping[str, Any], *, quiet: bool
) -> Iterator["LLM"]:
    """An engine for a ``with`` block; the command's flags win over its `defaults`.

    Raises:
        ValueError: the engine refuses an argument; the message names its flag. Or the command
            generates, and the engine would not.
    """
    given = engine_arguments(arguments)
    if given.get("runner") == "pooling" and "runner" not in defaults:
        raise ValueError(
            "--runner pooling generates nothing, and this command does; leave it out, or see "
            "jaxinfer embed and jaxinfer serve"
        )
    from jaxinfer import LLM

    with speaking_of_flags():
        llm = LLM(**{"show_progress": not quiet, **defaults, **given})
    with llm:
        try:
            yield llm
        except KeyboardInterrupt:
            # A step on a device, or a compilation, can't be cancelled. A follower ends at once.
            end_at_the_next_interrupt()
            if not quiet and not llm.follows:
                text = "stopping after the current step; Ctrl-C again stops at once"
                print(f"\n{text}", file=sys.stderr, flush=True)
            raise
