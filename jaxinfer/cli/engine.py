"""Opens a command's engine; its errors name flags instead of Python arguments."""

import argparse
import contextlib
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from jaxinfer.cli.flags.engine import engine_arguments
from jaxinfer.cli.flags.names import FLAG_NAMES, in_flags
from jaxinfer.cli.process import end_at_the_next_interrupt

if TYPE_CHECKING:
    from jaxinfer import LLM


@contextlib.contextmanager
def speaking_of_flags(flags: Mapping[str, str] = FLAG_NAMES) -> Iterator[None]:
    """Turn an error about an argument into one about its flag.

    Args:
        flags: as of `in_flags`.

    Raises:
        ValueError: with that message.
    """
    try:
        yield
    except (TypeError, ValueError) as error:
        raise ValueError(in_flags(str(error), flags)) from None


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

    with speaking_of_flags({**FLAG_NAMES, "enable_lora": "--lora"}):
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
