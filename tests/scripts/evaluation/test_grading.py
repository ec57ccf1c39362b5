"""Judging replies: what is right, what only looks right, and what is malformed."""

import pytest

from scripts.evaluation import grading
from scripts.evaluation.items.item import Item
from scripts.evaluation.rates import Question, Rate, Trial, below_bar, questions, rates
from scripts.evaluation.report import rate_records, report_lines

CALL = '<tool_call>\n{"name": "get_time", "arguments": {"city": "Oslo"}}\n</tool_call>'
THOUGHT = "<think>\n7 + 5 = 12\n</think>\n\n"


@pytest.mark.parametrize(
    ("reply", "right"),
    [
        ("37 + 45 = 82.", True),
        (THOUGHT + "37 + 45 = 82.", True),
        ("82", True),
        ("37 + 45 = 820.", False),
        ("37 + 45 = 83. No: 81.", False),
        ("", False),
    ],
)
def test_a_sum_is_judged_by_the_last_number_after_thinking(reply: str, right: bool):
    wanted = "37 + 45 = 82."
    assert grading.sum_is_right(reply, wanted) == right


@pytest.mark.parametrize(
    "reply",
    [
        "",
        "get_time",
        "<tool_call>\n{'name': 'get_time'}\n</tool_call>",
        '<tool_call>\n{"name": "get_time"}\n</tool_call>',
        '<tool_call>\n["get_time"]\n</tool_call>',
        '<tool_call>\n{"name": 3, "arguments": {}}\n</tool_call>',
        CALL.removesuffix("\n</tool_call>"),
    ],
)
def test_malformed_tool_calls_are_none_and_never_right(reply: str):
    assert grading.tool_calls(reply) is None
    assert not grading.tool_names_are_right(reply, CALL)
    assert not grading.tool_calls_are_right(reply, CALL)


def test_tool_calls_are_compared_by_name_and_by_argument():
    other_city, other_name = CALL.replace("Oslo", "Rome"), CALL.replace("_time", "_weather")
    assert grading.tool_calls_are_right(THOUGHT + CALL, CALL)
    assert grading.tool_names_are_right(other_city, CALL)
    assert not grading.tool_calls_are_right(other_city, CALL)
    assert not grading.tool_names_are_right(other_name, CALL)
    assert not grading.tool_names_are_right(f"{CALL}\n{CALL}", CALL)


@pytest.mark.parametrize(
    ("reply", "right"),
    [
        (THOUGHT + "Yes.", True),
        (THOUGHT, False),
        ("Yes.", False),
        ("<think>\nhm", False),
        ("<think>\n</think>\n</think>\nYes.", False),
        ("Well, " + THOUGHT + "Yes.", False),
    ],
)
def test_thinking_opens_and_closes_once_and_then_says_something(reply: str, right: bool):
    assert grading.thinks_once(reply) == right


def test_json_is_compared_by_meaning():
    assert grading.json_is_right('{"b": 2, "a": 1}', '{"a": 1, "b": 2}')
    assert not grading.json_is_right('{"a": 1', '{"a": 1}')
    assert not grading.json_is_right('{"a": 2}', '{"a": 1}')


def trial(kind: str, reply: str, answer: str, *, thinking: bool = False, ended: bool = True):
    return Trial(Question(Item(kind=kind, key="", answer=answer), thinking), reply, ended)


def test_rates_count_each_measure_over_its_own_kind():
    found = rates(
        [
            trial("sum", "82", "82"),
            trial("sum", THOUGHT + "83", "82", thinking=True),
            trial("chat", "Hello!", "Hello!"),
            trial("chat", "Hello! Hello!", "Hello!", ended=False),
            trial("tool_call", CALL.replace("Oslo", "Rome"), CALL),
        ]
    )
    assert found["sums_right"] == Rate(1, 2)
    assert found["sums_right_without_thinking"] == Rate(1, 1)
    assert found["chats_ended"] == Rate(1, 2)
    assert found["chats_right"] == Rate(1, 2)
    assert found["tool_names_right"] == Rate(1, 1)
    assert found["tool_calls_right"] == Rate(0, 1)
    assert found["thinking_closed"] == Rate(1, 1)
    assert found["json_right"].share == 0.0
    assert below_bar(found) == ["sums_right", "chats_ended"]


def test_the_report_names_every_rate_and_marks_missed_bars():
    found = rates([trial("sum", "83", "82")])
    report = {
        "model": "bundled",
        "dtype": "float32",
        "attention_backend": "xla",
        "rates": rate_records(found),
        "below_bar": below_bar(found),
        "story_loss": 0.25,
    }
    text = "\n".join(report_lines(report))
    assert "sums right" in text
    assert "(0/1, bar 95% MISSED)" in text
    assert text.endswith("0.2500 nats a token")


def test_questions_come_in_every_kind_and_both_modes():
    asked = questions(2)
    assert {q.item.kind for q in asked} == {"sum", "chat", "json", "tool_call"}
    assert {q.thinking for q in asked if q.item.kind == "sum"} == {False, True}
    assert len(asked) == 18
