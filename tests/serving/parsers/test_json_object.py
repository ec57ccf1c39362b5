"""The members of a JSON object: the values that Python's reader finds, each as it is written."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxinfer.serving.parsers.json_object import mended, object_members

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda children: (
        st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=4), children, max_size=3)
    ),
    max_leaves=8,
)


@given(
    st.dictionaries(st.text(max_size=4), VALUES, min_size=1, max_size=5),
    st.sampled_from([None, 0, 2]),
    st.sampled_from(["", "\n", " \t\r"]),
)
def test_members_are_those_of_pythons_reader(values, indent, around):
    written = around + json.dumps(values, indent=indent) + around
    members, end = object_members(written + "more", 0)
    assert written[end:] == around
    assert {name: member.value for name, member in members.items()} == values
    assert {name: json.loads(member.text) for name, member in members.items()} == values


def test_a_value_is_as_written_and_the_last_one_of_a_name_counts():
    members, _ = object_members('[{"a": 1, "b" :{ "c":1e999} ,"\\u0061": 1.50}', 1)
    assert {name: member.text for name, member in members.items()} == {
        "a": "1.50",
        "b": '{ "c":1e999}',
    }


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '"a"',
        "{",
        '{"a"',
        '{"a" 1}',
        '{"a": }',
        '{"a": 1',
        '{"a": 1,}',
        '{"a": 1 "b": 2}',
        '{"a": 1]',
        "{1: 2}",
        '{["a"]: 2}',
        '{"a\n": 1}',
        '\xa0{"a": 1}',
    ],
)
def test_what_is_no_object_is_refused(text):
    with pytest.raises(ValueError, match=r"."):
        object_members(text)


def test_there_is_a_most_of_members():
    written = {str(i): i for i in range(64)}
    assert len(object_members(json.dumps(written))[0]) == 64
    with pytest.raises(ValueError, match="more than 64 members"):
        object_members(json.dumps({**written, "64": 64}))


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ('{"a": [1, 2, ], }', '{"a": [1, 2 ] }'),
        ('{"a": ",]",\n}', '{"a": ",]"\n}'),
        ('{"a": "\\",}",}', '{"a": "\\",}"}'),
        ('{"\\\\": "é👩,]",}', '{"\\\\": "é👩,]"}'),
        ("[1, 2]", "[1, 2]"),
        ("[1,,]", "[1,]"),
        ('{"a": "b\n\t",\n"c": 1}', '{"a": "b\\n\\t",\n"c": 1}'),
        ('["é\x00👩\n", ]', '["é\\u0000👩\\n" ]'),
        (",", ","),
        ("[1," + " " * 64 + "]", "[1" + " " * 64 + "]"),
        ("[1," + " " * 65 + "]", "[1," + " " * 65 + "]"),
    ],
)
def test_what_is_almost_json_is_mended(written, kept):
    assert mended(written) == kept
