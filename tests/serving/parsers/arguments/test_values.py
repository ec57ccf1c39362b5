"""Written values as JSON: JSON itself, Python's literals, and what is neither."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxinfer.serving.parsers.arguments.types import ArgumentType
from jaxinfer.serving.parsers.arguments.values import as_json, may_be_null


def of(*kinds, choices=None):
    return ArgumentType(frozenset(kinds), choices)


@pytest.mark.parametrize(
    ("written", "expected", "read"),
    [
        ("7", of("integer"), 7),
        (" True\n", of("boolean"), True),
        ("None", of("integer", "null"), None),
        ('"7"', of("integer"), 7),
        ("7.5", of("integer"), 7.5),
        ("seven", of("integer"), "seven"),
        ("NaN", of("number"), "NaN"),
        ("7", of("string"), "7"),
        ("7", ArgumentType(), "7"),
        ("7", of("string", "integer", "number"), 7),
        ("7.5", of("string", "integer"), "7.5"),
        ("7.0", of("string", "integer"), 7.0),
        ("null", of("string", "null"), None),
        ("nullable", of("string", "null"), "nullable"),
        ('"a"', of("string", "array"), '"a"'),
        ("['a']", of("string", "array"), ["a"]),
        ("[oops", of("string", "array"), "[oops"),
        ("{'it': \"it's\", 'say': '\"a\"', 'b': [True, None,], }", of("object"), {}),
        ("{'a': 'don\\'t', \"b\": '\\x41\\n'}", of("object"), {"a": "don't", "b": "A\n"}),
        ("['True, None', \"False\"]", of("array"), ["True, None", "False"]),
        ("\"{'a': 1}\"", of("object"), {"a": 1}),
        ("['a", of("array"), "['a"),
        ("1", of("string", "integer", choices=("1", 2)), "1"),
        ("2", of("string", "integer", choices=("1", 2)), 2),
        ("true", of("integer", "boolean", choices=(1, True)), True),
        ("3", of("string", "integer", choices=("1", 2)), 3),
    ],
)
def test_values_are_read_as_their_types(written, expected, read):
    if read == {}:
        read = {"it": "it's", "say": '"a"', "b": [True, None]}
    found = json.loads(as_json(written, expected))
    assert found == read
    assert type(found) is type(read)


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(max_codepoint=255)),
    lambda children: (
        st.lists(children, max_size=3) | st.dictionaries(st.text("ab'\"\\ ", max_size=4), children)
    ),
    max_leaves=6,
)


@given(st.lists(plain, max_size=4))
def test_what_python_prints_comes_back_as_it_was(value):
    assert json.loads(as_json(repr(value), of("array"))) == value


def test_a_beginning_may_be_null():
    assert all(map(may_be_null, ["", " nu", "null", "None\n"]))
    assert not any(map(may_be_null, ["x", "nullx", "Nul"]))
