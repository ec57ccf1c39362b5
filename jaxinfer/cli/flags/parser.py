"""The argument parser of every command: one-line errors, and flags that stay unset by default."""

import argparse
import json
import sys
from collections.abc import Iterable, Sequence, Set
from typing import Any, NoReturn

from jaxinfer.checks import did_you_mean
from jaxinfer.cli.flags.fields import flag_of
from jaxinfer.cli.flags.vllm_flags import refusal_of_vllm_flags
from jaxinfer.cli.process import USAGE


class CommandParser(argparse.ArgumentParser):
    """An ArgumentParser named `jaxinfer NAME` that reports a mistake in one line.

    Flags of vLLM that it does not have are refused with what to do instead.

    Args:
        vllm: the table of `assets/vllm_names.toml` whose texts win: "engine" or "serve".

    Attributes:
        needs: arguments that are refused without another, by their names: what is needed.
    """

    def __init__(
        self, name: str, description: str, epilog: str = "", *, vllm: str = "engine"
    ) -> None:
        super().__init__(
            prog=f"jaxinfer {name}",
            description=description,
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        self._vllm = vllm
        self.needs: dict[str, str] = {}

    def parse_args(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, args: Iterable[str] | None = None, namespace: Any = None
    ) -> Any:
        """As argparse does, and refuses flags that are vLLM's alone or lack another."""
        argv = sys.argv[1:] if args is None else [*args]
        known = {name for action in self._actions for name in action.option_strings}
        if (refusal := refusal_of_vllm_flags(argv, known, self._vllm)) is not None:
            self.error(refusal)
        parsed, unknown = self.parse_known_args(argv, namespace)
        if unknown:
            self.error(_of_unknown(unknown, known))
        for name, needed in self.needs.items():
            if name in parsed and not getattr(parsed, needed, False):
                flag, other = flag_of(name), flag_of(needed)
                self.error(f"{flag} needs {other}; add that, or leave {flag} out")
        return parsed

    def error(self, message: str) -> NoReturn:
        """Print the mistake in one line and exit with status 2."""
        print(f"{self.prog}: error: {message} (see {self.prog} --help)", file=sys.stderr)
        sys.exit(USAGE)


def _of_unknown(words: Sequence[str], known: Set[str]) -> str:
    """What is wrong with words that fit no argument: flags alone, as others may be their values."""
    flags = [word.split("=", 1)[0] for word in words if word.startswith("-") and word != "--"]
    near = next(filter(None, (did_you_mean(flag, known) for flag in flags)), "")
    return f"unrecognized arguments: {' '.join(flags or words)}{near}"


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
