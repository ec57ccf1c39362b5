"""An engine's answer as a command streams it."""

import time
from typing import Any

from jaxinfer.cli.answers.answer import Answer
from jaxinfer.cli.answers.local_model import LocalModel
from jaxinfer.serving.compile.compile_notice import compile_notice
from tests.cli.fake_llm import FakeLLM


def test_compiling_is_announced_until_the_text_begins_and_behind_it(capsys):
    def compile_and_say() -> str:
        with compile_notice(1, enabled=True, patience_s=0.01):
            time.sleep(0.05)
        return capsys.readouterr().err

    llm: Any = FakeLLM(lambda prompt: ["", "Once", " upon"])
    model = LocalModel(llm)
    pieces = model.stream(model.request("a", {}), Answer())
    said = [bool(compile_and_say()) for _ in pieces]
    assert said == [True, False, False]
    assert compile_and_say()
