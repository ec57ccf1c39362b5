"""A value as JSON while it comes."""

import pytest

from jaxinfer.serving.parsers.arguments.types import ArgumentType
from jaxinfer.serving.parsers.arguments.writer import ValueWriter

TEXT, TEXT_OR_NULL = ArgumentType(), ArgumentType(frozenset({"string", "null"}))
NUMBER = ArgumentType(frozenset({"integer"}))


@pytest.mark.parametrize(
    ("expected", "parts", "written"),
    [
        (TEXT, ["a\n", "\nb", "\n"], ['"a', "\\n\\nb", "", '"']),
        (TEXT_OR_NULL, ["nu", "ll", "\n"], ["", "", "", "null"]),
        (TEXT_OR_NULL, ["nu", "t", "s"], ["", '"nut', "s", '"']),
        (TEXT_OR_NULL, [" " * 50, " " * 50], ["", '"' + " " * 100, '"']),
        (NUMBER, ["1", "2\n"], ["", "", "12"]),
    ],
)
def test_texts_come_at_once_and_other_values_once_whole(expected, parts, written):
    writer = ValueWriter(expected)
    assert [*map(writer.add, parts), writer.end()] == written


def test_what_is_cut_is_a_part_of_a_text_and_a_whole_number():
    for expected, text, written in ((TEXT, "a", ""), (NUMBER, "12", "12"), (NUMBER, " ", "")):
        writer = ValueWriter(expected)
        writer.add(text)
        assert writer.cut() == written
