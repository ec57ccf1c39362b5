"""Reads values that were written without JSON, by the types of their schema."""

import json
import re

from jaxinfer.serving.parsers.arguments.types import ArgumentType, kinds_of

_PYTHONS_WORDS = {"True": "true", "False": "false", "None": "null"}
_KINDS_BY_BEGIN = {"{": "object", "[": "array", '"': "string", "t": "boolean", "f": "boolean"}
_KINDS_BY_BEGIN |= {"n": "null"}
# Strings to their end, or to the text's end, so that an unclosed one is searched only once.
_PYTHONS = re.compile(
    r""" "[^"\\]*+(?:\\.[^"\\]*+)*+"?
       | '[^'\\]*+(?:\\.[^'\\]*+)*+'?
       | \b(?:True|False|None)\b
       | ,\s*+[\]}]
    """,
    re.DOTALL | re.VERBOSE,
)
_ESCAPES = re.compile(r"""\\(?:x([0-9a-fA-F]{2})|(.))|(")""", re.DOTALL)


def as_json(written: str, expected: ArgumentType) -> str:
    """A written value as JSON of its type; as a string if it can't be read as that type.

    JSON stays as it is written: another reader may keep more digits than Python, and half of a
    surrogate pair can't be sent but as an escape. Python's literals are read too, and JSON within a
    JSON string where no string may be.
    """
    text = json.dumps(written, ensure_ascii=False)
    if expected.is_text:
        return text
    kinds = expected.kinds or frozenset()
    read = _json(written)
    if expected.choices is not None and (chosen := _choice(written, read, expected.choices)):
        return chosen
    if "string" in kinds:
        is_other = read is not None and _fits(read, kinds - {"string"})
        return read if read is not None and is_other else text
    if read is None:
        return text
    if read.startswith('"') and (inner := _json(json.loads(read))) and _fits(inner, kinds):
        return inner
    return read


def may_be_null(begin: str) -> bool:
    """True if a value with this beginning, white space stripped, may be null."""
    return any(word.startswith(begin.strip()) for word in ("null", "None"))


def _choice(written: str, read: str | None, choices: tuple[object, ...]) -> str | None:
    """The written choice as JSON; None if the value is not one of the choices."""
    if written in choices:
        return json.dumps(written, ensure_ascii=False)
    if read is None:
        return None
    value = json.loads(read)
    if any(value == each and kinds_of(value) == kinds_of(each) for each in choices):
        return read
    return None


def _json(written: str) -> str | None:
    """A value as JSON, if it is JSON or Python's."""
    plain = written.strip()
    plain = _PYTHONS_WORDS.get(plain, plain)
    if _is_json(plain):
        return plain
    if not plain.startswith(("[", "{")):
        return None
    plain = _PYTHONS.sub(_from_python, plain)
    return plain if _is_json(plain) else None


def _is_json(text: str) -> bool:
    try:
        json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return False
    return True


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _from_python(found: re.Match[str]) -> str:
    """A part of a Python literal as JSON; a string that is not closed stays as it is."""
    part = found[0]
    if part[0] == ",":
        return part[-1]
    if part[0] not in "\"'":
        return _PYTHONS_WORDS[part]
    if "\\" in part or '"' in part[1:-1]:
        return f'"{_ESCAPES.sub(_escape, part[1:-1])}"'
    return f'"{part[1:-1]}"' if part[-1] == part[0] else part


def _escape(found: re.Match[str]) -> str:
    byte, escaped, quote = found.groups()
    if byte:
        return f"\\u00{byte}"
    return '\\"' if quote else "'" if escaped == "'" else found[0]


def _fits(read: str, kinds: frozenset[str]) -> bool:
    """True if a JSON text is of one of these types."""
    kind = _KINDS_BY_BEGIN.get(read[0])
    return bool((kinds_of(json.loads(read)) if kind is None else {kind}) & kinds)
