"""Texts that a schema admits, as terminals; what they admit is in `test_coder_grammar.py`."""

import re

import jsonschema
import pytest

from jaxinfer.serving.constraints.grammar.schemas.keywords import FORMATS as KNOWN
from jaxinfer.serving.parsers.arguments.texts import FORMATS, text_terminal

SAMPLES = {
    "date": (["2026-02-28"], ["2026-2-28", "2026-13-01"]),
    "time": (["23:59:60Z", "01:02:03.5+01:00"], ["24:00:00Z", "01:02:03"]),
    "date-time": (["2026-02-28T01:02:03Z"], ["2026-02-28", "2026-02-28 01:02:03Z"]),
    "duration": (["P1Y2M3D", "PT5M", "P3W"], ["P", "PT", "P1H", "1D"]),
    "email": (["a.b@example.org"], ["a@", "@b", "a b@c"]),
    "hostname": (["a-b.example"], ["-a", "a..b"]),
    "ipv4": (["127.0.0.1"], ["256.0.0.1", "1.2.3"]),
    "ipv6": (["::", "::1", "fe80::1:2", "1:2:3:4:5:6:7:8"], [":::", "1:2:3", "1::2::3"]),
    "uri": (["https://a.example/b?c#d", "mailto:a"], ["a b", "//a"]),
    "uuid": (["12345678-1234-1234-1234-123456789abc"], ["12345678"]),
}


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_a_format_is_a_regular_expression(name):
    good, bad = SAMPLES[name]
    for text in good:
        assert re.fullmatch(FORMATS[name], text)
        checker = jsonschema.FormatChecker()
        assert name in ("time", "date-time") or checker.conforms(text, name)
    assert not any(re.fullmatch(FORMATS[name], text) for text in bad)


@pytest.mark.parametrize(
    ("schema", "terminal"),
    [
        (True, ""),
        (False, None),
        ({"type": "integer"}, None),
        ({"enum": [1, "a"]}, '("a")'),
        ({"const": 1}, None),
        ({"anyOf": [{"type": "null"}, {"const": "a"}]}, '((("a")))'),
        ({"anyOf": [{}, {"const": "a"}]}, ""),
        ({"maxLength": 3, "pattern": "^a/b"}, r"(/(?s:.{0,3})/) & ((/a\/b/ /(?s:.*)/))"),
    ],
)
def test_terminals(schema, terminal):
    assert text_terminal(schema, lambda pointer: None) == terminal
