"""The line after a run: rates without the time of compiling, numbers and nouns that agree."""

import dataclasses
from typing import Any

import pytest

from jaxinfer.cli.answers.answer import Answer, RunTimes
from jaxinfer.cli.answers.local_model import LocalModel
from jaxinfer.cli.answers.statistics import answer_line, count
from tests.cli.fake_llm import FakeLLM

ANSWER = Answer(prompt_tokens=100, generation_tokens=11, finish_reason="stop")
TIMES = RunTimes(
    first_token_s=9.0,
    total_s=16.0,
    first_compile_s=8.0,
    compile_s=10.0,
    num_compilations=4,
    peak_memory_bytes=10**9,
)


def test_rates_leave_compiling_out():
    line = answer_line(ANSWER, TIMES)
    assert "prompt 100 tokens, 100.0 tok/s" in line  # in 9 s, of which 8 went into compiling
    assert "generation 11 tokens, 2.0 tok/s" in line  # 10 tokens in 7 s, of which 2
    assert "compiling 4 programs, 10.0 s" in line


def test_a_run_that_compiled_nothing_does_not_speak_of_it():
    assert "compiling" not in answer_line(ANSWER, RunTimes(first_token_s=9.0, total_s=16.0))


@pytest.mark.parametrize("tokens", [0, 1])
def test_a_rate_that_is_not_known_is_left_out(tokens):
    # The step waited for programs that an earlier, interrupted answer had asked for.
    answer = dataclasses.replace(ANSWER, generation_tokens=tokens)
    assert "tok/s" not in answer_line(answer, dataclasses.replace(TIMES, first_compile_s=9.5))


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
