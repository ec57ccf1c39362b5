"""Flags made of a dataclass's fields, with the lines of its docstring as their help."""

import argparse
import dataclasses
import inspect
import re
import types
import typing
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any

_ATTRIBUTE = re.compile(r"^    (\w+): (.*?)(?=^    \w|\Z)", re.MULTILINE | re.DOTALL)
_NONE = re.compile(r"[;.] None is ((?:[^.;]|\.(?!\s|$))*)")
_NOTHING: Mapping[str, Any] = MappingProxyType({})


def flag_of(name: str) -> str:
    """The flag of a field."""
    return "--" + name.replace("_", "-")


def add_field_flag(
    group: "argparse._ActionsContainer",
    kind: Any,
    name: str,
    *flags: str,
    flagged: Collection[str],
    default: str | None = None,
    reading: Mapping[str, Any] = _NOTHING,
) -> None:
    """Add the flag of a field; left out, it is absent from the parsed arguments.

    Args:
        group: takes the flag.
        kind: the dataclass; its docstring has a line "name: text" for each field, whose first
            sentence is the flag's help, and "None is X" in it the default that is shown.
        name: of the field.
        flags: in place of the field's name with hyphens.
        flagged: names of fields that are flags, too; texts show them as such.
        default: shown in place of the field's; "" shows none.
        reading: arguments of `add_argument`, in place of what follows from the field's type.
    """
    (field,) = (field for field in dataclasses.fields(kind) if field.name == name)
    text = _text(kind, name, flagged)
    none = _NONE.search(text)
    if default is None:
        default = none[1] if field.default is None and none is not None else str(field.default)
    what = re.split(r"\.(?=\s|$)", _NONE.sub("", text), maxsplit=1)[0]
    if reading.get("action") == "append":
        what += "; may be repeated"
    group.add_argument(
        *(flags or [flag_of(name)]),
        dest=name,
        default=argparse.SUPPRESS,
        help=(f"{what} (default: {default})" if default else what).replace("%", "%%"),
        **(reading or _reading(field.type)),
    )


def given(namespace: argparse.Namespace, names: frozenset[str]) -> dict[str, object]:
    """The flags among `names` that the user wrote; the library has the defaults of the others."""
    return {name: value for name, value in vars(namespace).items() if name in names}


def _text(kind: Any, name: str, flagged: Collection[str]) -> str:
    """The docstring's text for a field, with flags in place of other fields' names."""
    attributes = inspect.cleandoc(kind.__doc__ or "").partition("Attributes:\n")[2]
    texts = dict(_ATTRIBUTE.findall(attributes.partition("\n\n")[0] + "\n"))
    text = " ".join(texts.get(name, "").split())
    text = re.sub(
        r"`+([^`]*)`+", lambda word: flag_of(word[1]) if word[1] in flagged else word[1], text
    )
    first = text.partition(" ")[0]
    return text[:1].lower() + text[1:] if first[1:].islower() or len(first) == 1 else text


def _reading(hint: Any) -> dict[str, Any]:
    """The arguments of `add_argument` for a field of this type."""
    if isinstance(hint, types.UnionType):
        hint = typing.get_args(hint)[0]
    if hint is bool:
        return {"action": argparse.BooleanOptionalAction}
    choices = typing.get_args(hint)
    return {"choices": choices} if choices else {"type": hint}
