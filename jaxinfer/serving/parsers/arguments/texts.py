"""Writes the unquoted texts that a schema admits as a terminal of a grammar."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

Resolve = Callable[[Any], Any]
"""A `$ref` -> the part of the schema that it names, or None."""

_ANY = "/(?s:.*)/"
_MOST_DEPTH, _MOST_PARTS = 32, 1000
_TIME = r"([01]\d|2[0-3]):[0-5]\d:([0-5]\d|60)(\.\d+)?([zZ]|[+-]([01]\d|2[0-3]):[0-5]\d)"
_DATE = r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])"
_CLOCK = r"T(\d+S|\d+M(\d+S)?|\d+H(\d+M(\d+S)?)?)"
_LABEL = r"[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
_HOST = rf"{_LABEL}(\.{_LABEL})*"
_BYTE = r"(25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
_HEX = "[0-9a-fA-F]{1,4}"
_IPV6 = [f"({_HEX}:){{7}}{_HEX}", f"({_HEX}:){{1,7}}:", f":(:{_HEX}){{1,7}}", "::"]
_IPV6 += [f"({_HEX}:){{1,{7 - n}}}(:{_HEX}){{1,{n}}}" for n in range(1, 7)]
FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}[tT]{_TIME}",
    "duration": rf"P(\d+W|(\d+D|\d+M(\d+D)?|\d+Y(\d+M(\d+D)?)?)({_CLOCK})?|{_CLOCK})",
    "email": rf"[a-zA-Z0-9!#$%&'*+/=?^_`{{|}}~-]+(\.[a-zA-Z0-9!#$%&'*+/=?^_`{{|}}~-]+)*@{_HOST}",
    "hostname": _HOST,
    "ipv4": rf"{_BYTE}(\.{_BYTE}){{3}}",
    "ipv6": "|".join(_IPV6),
    "uri": r"[a-zA-Z][a-zA-Z0-9+.-]*:[^\s<>\"{}|\\^`]+",
    "uuid": "[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
}
"""Regular expressions of the formats that texts follow."""


def text_terminal(schema: Any, resolve: Resolve) -> str | None:
    """An expression in Lark of the texts that a schema admits.

    Args:
        schema: a schema whose keywords can be enforced, from `enforced_schema`.

    Returns:
        None for no text; an empty expression for any.

    Raises:
        ValueError: a keyword can't be enforced for texts; one line.
    """
    return _Terminals(resolve).of(schema)


def literal(text: str) -> str:
    """A text as Lark writes it."""
    return json.dumps(text, ensure_ascii=False)


def regex(pattern: str) -> str:
    """A regular expression as Lark writes it."""
    return "/" + re.sub(r"\\.|/", lambda m: m[0] if len(m[0]) > 1 else r"\/", pattern) + "/"


class _Terminals:
    def __init__(self, resolve: Resolve) -> None:
        self._resolve = resolve
        self._num_parts = 0

    def of(self, schema: Any, depth: int = 0) -> str | None:
        self._num_parts += 1
        if depth > _MOST_DEPTH or self._num_parts > _MOST_PARTS:
            raise ValueError("the schema has too many parts, or refers to itself")
        if schema is False:
            return None
        if not isinstance(schema, Mapping):
            return ""
        parts = [*_own(schema)]
        if "$ref" in schema:
            parts.append(self.of(referred(schema, self._resolve), depth + 1))
        parts += [self.of(each, depth + 1) for each in schema.get("allOf", ())]
        for keyword in ("anyOf", "oneOf"):
            if keyword in schema:
                cases = [self.of(each, depth + 1) for each in schema[keyword]]
                parts.append(_either(keyword, [each for each in cases if each is not None]))
        if None in parts:
            return None
        return " & ".join(f"({part})" for part in parts if part)


def referred(schema: Mapping[str, Any], resolve: Resolve) -> Any:
    """The part of a schema that its `$ref` names; ValueError if it is none."""
    found = resolve(schema["$ref"])
    if found is None:
        raise ValueError(f"$ref {schema['$ref']!r} names no part of the schema")
    return found


def _own(schema: Mapping[str, Any]) -> Iterator[str | None]:
    """The expression for each of a schema's own keywords."""
    kinds = schema.get("type", "string")
    if "string" not in (kinds if isinstance(kinds, list) else [kinds]):
        yield None
    for values in (schema.get("enum"), [schema["const"]] if "const" in schema else None):
        if values is not None:
            texts = [literal(each) for each in values if isinstance(each, str)]
            yield " | ".join(texts) or None
    least, most = schema.get("minLength", 0), schema.get("maxLength", "")
    if least or most != "":
        yield f"/(?s:.{{{least},{most}}})/"
    if "pattern" in schema:
        yield _searched(schema["pattern"])
    if schema.get("format") in FORMATS:
        yield regex(FORMATS[schema["format"]])


def _either(keyword: str, cases: list[str]) -> str | None:
    if not cases:
        return None
    if keyword == "oneOf" and len(cases) > 1:
        raise ValueError("oneOf of several texts can't be enforced; write anyOf")
    return "" if "" in cases else " | ".join(f"({case})" for case in cases)


def _searched(pattern: str) -> str:
    """A pattern that may match anywhere, as an expression for the whole text."""
    branches = []
    for branch in _branches(pattern):
        begin = [] if branch.startswith("^") else [_ANY]
        inner = branch.removeprefix("^")
        end = [] if inner.endswith("$") and not _is_escaped(inner) else [_ANY]
        inner = inner if end else inner[:-1]
        branches.append(" ".join([*begin, *([regex(inner)] if inner else ()), *end]) or '""')
    return " | ".join(f"({branch})" for branch in branches)


def _branches(pattern: str) -> list[str]:
    """The alternatives of a pattern that are in no brackets."""
    branches, depth, start = [], 0, 0
    for found in re.finditer(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|[()|]", pattern, re.DOTALL):
        if found[0] == "|" and not depth:
            branches.append(pattern[start : found.start()])
            start = found.end()
        depth += {"(": 1, ")": -1}.get(found[0], 0)
    return [*branches, pattern[start:]]


def _is_escaped(text: str) -> bool:
    """True if the last character is escaped."""
    before = text[:-1]
    return (len(before) - len(before.rstrip("\\"))) % 2 == 1
