"""The argument parser of every command: one-line errors, and flags that stay unset by default."""

import argparse
import json
import sys
from typing import Any, NoReturn

from jaxinfer.cli.process import USAGE


class CommandParser(argparse.ArgumentParser):
    """An ArgumentParser named `jaxinfer NAME` that reports a mistake in one line."""

    def __init__(self, name: str, description: str, epilog: str = "") -> None:
        super().__init__(
            prog=f"jaxinfer {name}",
            description=description,
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        """Print the mistake in one line and exit with status 2."""
        print(f"{self.prog}: error: {message} (see {self.prog} --help)", file=sys.stderr)
        sys.exit(USAGE)


def given(namespace: argparse.Namespace, names: frozenset[str]) -> dict[str, object]:
    """The flags among `names` that the user wrote; the library has the defaults of the others."""
    return {name: value for name, value in vars(namespace).items() if name in names}


def json_object(text: str) -> dict[str, Any]:
    """A flag's JSON object; ArgumentTypeError if it is none."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not JSON ({error}): {text}") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"not a JSON object: {text}")
    return value


def comma_separated_integers(text: str) -> list[int]:
    """Parse "1,8,64" into positive integers.

    Raises:
        argparse.ArgumentTypeError: something between the commas is not a positive integer.
    """
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = [0]
    if min(numbers) < 1:
        raise argparse.ArgumentTypeError(f"expected positive integers like 1,8,64, got {text!r}")
    return numbers


def positive_integer(text: str) -> int:
    """An integer that is at least 1; else ArgumentTypeError."""
    try:
        (number,) = comma_separated_integers(text)
    except (argparse.ArgumentTypeError, ValueError):
        raise argparse.ArgumentTypeError(f"expected one positive integer, got {text!r}") from None
    return number
