"""The line after a run: rates without the time of compiling, numbers and nouns that agree."""

import dataclasses

import pytest

from jaxinfer.cli.answers.answer import Answer, cut_reason
from jaxinfer.cli.answers.statistics import RunStatistics, count
from jaxinfer.sampling_params import SamplingParams

RUN = RunStatistics(
    prompt_tokens=100,
    cached_tokens=0,
    generation_tokens=11,
    finish_reason="stop",
    first_token_s=9.0,
    first_compile_s=8.0,
    total_s=16.0,
    num_compilations=4,
    compile_s=10.0,
    peak_memory_bytes=10**9,
)


def test_rates_leave_compiling_out():
    assert RUN.prompt_tokens_per_s == 100.0  # in 9 s, of which 8 went into compiling
    assert RUN.generation_tokens_per_s == 2.0  # 10 tokens in 7 s, of which 2
    assert "compiling 4 programs, 10.0 s" in RUN.line()


def test_a_run_that_compiled_nothing_does_not_speak_of_it():
    run = dataclasses.replace(RUN, num_compilations=0, compile_s=0.0, first_compile_s=0.0)
    assert "compiling" not in run.line()


@pytest.mark.parametrize("tokens", [0, 1])
def test_a_rate_that_is_not_known_is_left_out(tokens):
    # The step waited for programs that an earlier, interrupted answer had asked for.
    run = dataclasses.replace(RUN, generation_tokens=tokens, first_compile_s=9.5)
    assert "tok/s" not in run.line()


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
    answer = Answer(token_ids=[1, 2, 3], finish_reason=finish_reason)
    said = cut_reason(answer, SamplingParams(max_tokens=max_tokens), 8, setting="-m")
    assert said is None if reason is None else reason in (said or "")
