"""Puts the names of flags in place of the library's names of arguments."""

import dataclasses
import re
from collections.abc import Mapping

from jaxinfer.cli.flags.fields import flag_of
from jaxinfer.cli.flags.process import PROCESS_FIELDS
from jaxinfer.cli.flags.sampling import SAMPLING_FIELDS
from jaxinfer.config import EngineConfig

_ENGINE_FIELDS = (field.name for field in dataclasses.fields(EngineConfig))
FLAG_NAMES: Mapping[str, str] = {
    **{name: flag_of(name) for name in (*_ENGINE_FIELDS, *SAMPLING_FIELDS, *PROCESS_FIELDS)},
    "temperature": "--temp",
    "show_progress": "--quiet",
}
"""The flags of an engine, of its processes and of sampling, by the argument's name."""


def in_flags(message: str, flags: Mapping[str, str] = FLAG_NAMES) -> str:
    """A message of the library with the flags in place of the names of Python arguments.

    Names with an underscore or a value are replaced anywhere, others only as the first word,
    because "stop" and "seed" are also English. Quotes and paths are the user's own text and stay.

    Args:
        flags: by the argument's name.
    """
    before, behind = r"(?<![\w/.'\"-])", r"(?![\w/'\"]|\.\w)"
    names = re.compile(rf"{before}({'|'.join(flags)}){behind}(=True\b|=False\b|(?==))?")

    def flag(match: re.Match[str]) -> str:
        name, value = match[1], match[2]
        if "_" not in name and value is None and match.start() > 0:
            return name
        negated = value == "=False" and flags[name] == flag_of(name)
        return f"--no-{flags[name][2:]}" if negated else flags[name]

    return names.sub(flag, message)
