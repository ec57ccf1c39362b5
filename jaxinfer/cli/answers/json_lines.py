"""Writes answers as JSON lines, which any program can split and which can be prompts again."""

import codecs
import json
from collections.abc import Mapping
from typing import Any


def json_line(record: Mapping[str, Any], encoding: str = "utf-8") -> str:
    r"""One line of JSON, without its line break.

    Characters that some programs take for a line break (U+0085, U+2028), control characters of
    terminals, and lone surrogates are written as ``\uXXXX``; other letters stay readable where the
    stream is UTF-8.
    """
    if codecs.lookup(encoding).name != "utf-8":
        return json.dumps(record)
    text = json.dumps(record, ensure_ascii=False)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)
