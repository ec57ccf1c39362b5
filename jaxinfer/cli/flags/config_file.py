"""Reads a command's --config file as flags of its command line."""

import argparse
import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from jaxinfer.checks import did_you_mean
from jaxinfer.cli.flags.parser import CommandParser
from jaxinfer.cli.texts import file_errors

_MOST_BYTES = 1 << 20
_SCALARS = (str, int, float)


def with_config_file(
    argv: Sequence[str], parser: CommandParser, foreign: Collection[str] = ()
) -> list[str]:
    """The command line with the flags of its --config file before the others, which win.

    Args:
        foreign: flags that the command does not have and refuses itself.

    Raises:
        ValueError: the file can't be read, or holds something else than flags.
    """
    own = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    own.add_argument("--config")
    file = own.parse_known_args(list(argv))[0].config
    if file is None:
        return list(argv)
    known = {name: action for action in parser._actions for name in action.option_strings}
    words: list[str] = []
    with file_errors(f"--config {file}", "a YAML file of flags"):
        content = _read_yaml(file)
    for key, value in content.items():
        name = "--" + str(key).replace("_", "-")
        if not {name, _negative(name)} & known.keys() and name not in foreign:
            near = did_you_mean(name, known) or f"; `{parser.prog} --help` lists them"
            raise ValueError(f"{file}: no flag {name}{near}")
        if name == "--config":
            raise ValueError(f"{file}: a file names no other one; leave out config")
        words += _as_words(file, name, value, known, foreign)
    return [*words, *argv]


def _read_yaml(file: str) -> dict[str, Any]:
    import yaml

    class Loader(yaml.SafeLoader):
        """Reads texts, numbers, lists and mappings; a date is text."""

        yaml_implicit_resolvers = {  # noqa: RUF012
            first: [pair for pair in pairs if not pair[0].endswith(":timestamp")]
            for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
        }

        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):  # a few lines could stand for gigabytes
                raise yaml.YAMLError("aliases are not taken; write the value out")
            return super().compose_node(parent, index)

    try:
        content = yaml.load(_read_text(file), Loader)
    except OSError:
        raise
    except Exception as error:  # of many types: `!!float ""` is an IndexError
        raise ValueError(f"{file}: not YAML: {' '.join(str(error).split())[:300]}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{file}: expected `flag: value` lines")
    return content


def _read_text(file: str) -> str:
    """Read a file's text, up to a limit, as a device may have no end."""
    with open(file, "rb") as opened:
        data = opened.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise ValueError(f"it has more than {_MOST_BYTES} bytes")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not UTF-8 text ({error.reason} at byte {error.start})") from None


def _as_words(
    file: str,
    name: str,
    value: Any,
    known: Mapping[str, argparse.Action],
    foreign: Collection[str],
) -> list[str]:
    """A flag of the file as words of a command line."""
    action = known.get(name)
    if value is None:
        raise ValueError(f"{file}: {name} has no value")
    if isinstance(value, bool):
        word = name if value else _negative(name)
        return [word] if word in known or name in foreign else []
    if isinstance(value, dict) and action is not None and action.metavar == "JSON":
        try:
            return [f"{name}={json.dumps(value)}"]
        except TypeError as error:
            raise ValueError(f"{file}: {name} is no JSON: {error}") from None
    values = value if isinstance(value, list) else [value]
    for each in values:
        if not isinstance(each, _SCALARS) or isinstance(each, bool):
            raise ValueError(f"{file}: {name} takes texts or numbers, not {str(each)[:100]}")
    if action is not None and action.nargs == "+":
        return [name, *map(str, values), "--config", file]  # a flag ends the list
    return [f"{name}={each}" for each in values]


def _negative(name: str) -> str:
    return f"--no-{name[2:]}"
