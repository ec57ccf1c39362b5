"""The line after a run: rates of times without compiling, numbers and nouns that agree."""

import dataclasses
from typing import Any

import pytest

from jaxinfer.cli.answers.answer import Answer, RunTimes
from jaxinfer.cli.answers.local_model import LocalModel
from jaxinfer.cli.answers.statistics import Stopwatch, answer_line, batch_line, count
from jaxinfer.cli.prompts import PromptLine
from jaxinfer.outputs import RequestMetrics
from tests.cli.fake_llm import FakeLLM

ANSWER = Answer(prompt_tokens=100, generation_tokens=11, finish_reason="stop")
TIMES = RunTimes(
    first_token_s=9.0,
    total_s=16.0,
    first_compile_s=8.0,
    steady=(4, 2.0),
    compile_s=10.0,
    num_compilations=4,
    peak_memory_bytes=10**9,
)


def test_rates_are_of_times_in_which_nothing_was_compiled():
    line = answer_line(ANSWER, TIMES)
    assert "prompt 100 tokens | generation 11 tokens, 2.0 tok/s" in line  # 4 tokens in 2 s
    assert "compiling 4 programs, 10.0 s" in line
    line = answer_line(ANSWER, RunTimes(first_token_s=10.0, total_s=15.0))
    assert "prompt 100 tokens, 10.0 tok/s | generation 11 tokens, 2.0 tok/s" in line


@pytest.mark.parametrize(
    ("compile_s", "text"), [(0.0, "in 5.00 s, 4.4 tok/s |"), (3.0, "in 5.00 s |")]
)
def test_a_batch_has_the_rate_of_its_time_or_none(compile_s, text):
    metrics = RequestMetrics(0.0, 1.0, 2.0, 5.0, num_generated_tokens=11)
    answers = [dataclasses.replace(ANSWER, metrics=metrics)] * 2
    times = RunTimes(first_token_s=2.0, total_s=5.0, compile_s=compile_s)
    assert f"generation 22 tokens {text}" in batch_line(answers, times)


def test_outputs_that_waited_for_a_compilation_are_not_steady(monkeypatch):
    llm: Any = FakeLLM(lambda prompt: [])
    now = iter([0.0, 3.0, 4.0, 9.0, 11.0, 12.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(now))
    watch = Stopwatch(llm)
    watch.mark_tokens(1)
    watch.mark_tokens(8)
    llm.compile_seconds += 4.0
    watch.mark_tokens(8)
    watch.mark_tokens(3)
    assert watch.times().steady == (11, 3.0)


def test_a_run_that_compiled_nothing_does_not_speak_of_it():
    assert "compiling" not in answer_line(ANSWER, RunTimes(first_token_s=9.0, total_s=16.0))


@pytest.mark.parametrize("tokens", [0, 1])
def test_a_rate_that_is_not_known_is_left_out(tokens):
    answer = dataclasses.replace(ANSWER, prompt_tokens=0, generation_tokens=tokens)
    assert "tok/s" not in answer_line(answer, RunTimes(first_token_s=9.0, total_s=16.0))
    assert "tok/s" not in answer_line(answer, dataclasses.replace(TIMES, steady=(0, 0.0)))


def _drafted(drafts, accepted):
    metrics = RequestMetrics(0.0, num_draft_tokens=drafts, num_accepted_tokens=accepted)
    return dataclasses.replace(ANSWER, metrics=metrics)


def test_drafts_are_counted_where_there_were_some():
    assert "| 9 of 12 drafts accepted (75%) |" in answer_line(_drafted(12, 9), TIMES)
    assert "| 9 of 14 drafts accepted (64%)" in batch_line([_drafted(12, 9), _drafted(2, 0)], TIMES)
    for answer in (ANSWER, _drafted(0, 0)):
        assert "draft" not in answer_line(answer, TIMES)
        assert "draft" not in batch_line([answer], TIMES)


def test_a_record_has_drafts_where_there_were_some():
    line = PromptLine("test", "text")
    statistics = _drafted(12, 9).record(line)["statistics"]
    assert statistics["draft_tokens"] == 12
    assert statistics["accepted_draft_tokens"] == 9
    assert statistics["draft_acceptance_rate"] == 0.75
    for answer in (ANSWER, _drafted(0, 0)):
        assert not any("draft" in name for name in answer.record(line)["statistics"])


@pytest.mark.parametrize(("number", "text"), [(0, "0 tokens"), (1, "1 token"), (2, "2 tokens")])
def test_one_is_singular(number, text):
    assert count(number, "token") == text


@pytest.mark.parametrize(
    ("finish_reason", "max_tokens", "reason"),
    [
        ("length", 3, "cut at -m 3"),
        ("length", 9, "fill the context of 8 tokens; --max-model-len"),
        ("length", None, "fill the context of 8 tokens; --max-model-len"),
        ("stop", 3, None),
        (None, 3, None),
    ],
)
def test_a_cut_names_the_setting_that_cut(finish_reason, max_tokens, reason):
    llm = FakeLLM(lambda prompt: [])
    llm.max_model_len = 8
    model: Any = LocalModel(llm)  # pyright: ignore[reportArgumentType]
    request = model.request("a", {"max_tokens": max_tokens})
    answer = Answer(generation_tokens=3, finish_reason=finish_reason)
    said = model.cut_reason(request, answer, setting="-m")
    assert said is None if reason is None else reason in (said or "")
