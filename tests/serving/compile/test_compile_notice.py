"""Compiling shows itself when it takes long, says how long it took, and is silent otherwise."""

import re
import sys
import time

import pytest

from jaxinfer.sampling_params import SamplingParams
from jaxinfer.serving.compile import compile_notice as module
from jaxinfer.serving.compile.compilation import CompiledPrograms
from jaxinfer.serving.compile.compile_notice import compile_notice, no_compile_notices
from tests.serving.small_llm import small_llm


def test_the_first_line_comes_while_it_goes_on_and_the_second_has_the_time(capsys):
    with compile_notice(2, enabled=True, patience_s=0.01):
        time.sleep(0.2)
        assert capsys.readouterr().err == "compiling 2 programs ...\n"
    assert re.fullmatch(r"compiled 2 programs in 0\.\d s\n", capsys.readouterr().err)


def test_on_a_terminal_it_begins_a_line_of_its_own(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with compile_notice(1, enabled=True, patience_s=0.01):
        sys.stderr.write("Once upon")
        time.sleep(0.1)
    assert capsys.readouterr().err.startswith("Once upon\ncompiling 1 program ...\n")


def test_what_is_quick_or_not_to_be_shown_says_nothing(capsys):
    with compile_notice(1, enabled=True, patience_s=60):
        pass
    with compile_notice(1, enabled=False, patience_s=0.01):
        time.sleep(0.05)
    assert capsys.readouterr().err == ""


def test_it_is_silent_while_an_answer_is_written(capsys):
    with no_compile_notices(), compile_notice(1, enabled=True, patience_s=0.01):
        time.sleep(0.05)
    assert capsys.readouterr().err == ""
    with compile_notice(1, enabled=True, patience_s=0.01):
        time.sleep(0.05)
    assert capsys.readouterr().err.startswith("compiling 1 program")


def test_it_is_silent_until_the_last_of_several_answers_is_written(capsys):
    first, second = no_compile_notices(), no_compile_notices()
    first.__enter__()
    with second:
        first.__exit__(None, None, None)
        with compile_notice(1, enabled=True, patience_s=0.01):
            time.sleep(0.05)
    assert capsys.readouterr().err == ""


def test_an_answer_may_be_left_when_the_interpreter_has_cleared_the_modules_names(monkeypatch):
    texts, answer = module._texts, no_compile_notices()
    answer.__enter__()
    for name in [*vars(module)]:
        if not name.startswith("__"):
            monkeypatch.setattr(module, name, None)
    answer.__exit__(None, None, None)
    assert not texts


def test_a_closed_stream_does_not_end_the_work(monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    with compile_notice(1, enabled=True, patience_s=0.01):
        time.sleep(0.05)


@pytest.mark.parametrize("says_so", [True, False])
def test_a_first_use_is_announced_and_timed_and_a_second_is_not(capsys, says_so):
    class Slow:
        def compile(self, compiler_options=None):
            time.sleep(0.7)
            return lambda: "ran"

    programs = CompiledPrograms(lambda *_: Slow(), lambda key: {}, says_so=says_so)
    assert programs["a"]() == "ran"
    assert programs.seconds_waited >= 0.7
    err = capsys.readouterr().err
    assert ("compiling 1 program ...\ncompiled 1 program in" in err) == says_so
    waited = programs.seconds_waited
    assert programs["a"]() == "ran"
    assert programs.seconds_waited == waited
    programs.close()


def test_an_engine_tells_how_long_its_steps_have_waited():
    with small_llm() as llm:
        assert llm.compile_seconds == 0.0
        llm.generate([[1, 2, 3]], SamplingParams(max_tokens=2), use_tqdm=False)
        waited = llm.compile_seconds
        assert waited > 0.0
        llm.generate([[3, 2, 1]], SamplingParams(max_tokens=2), use_tqdm=False)
        assert llm.compile_seconds == waited
