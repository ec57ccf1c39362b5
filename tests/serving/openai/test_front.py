"""What front ends find out about a model when they start."""

from typing import Any

from jaxinfer.model.text.tokenizer import Tokenizer
from jaxinfer.serving.openai.front import Front
from jaxinfer.serving.openai.settings import ServerSettings
from tests.model.text.small_tokenizer import build_backend
from tests.serving.openai.fake_engine import FakeEngine


def test_parsers_are_those_of_the_templates_that_they_read(engine):
    fake: Any = FakeEngine(engine)
    templates = {"default": "</think>", "tool_use": "<function="}
    fake.tokenizer = Tokenizer(build_backend(), chat_template=templates)
    telemetry: Any = None
    front = Front(fake, ServerSettings(served_model_names=("m",)), telemetry)
    assert (front.tool_parser, front.reasoning_parser) == ("qwen3_coder", "qwen3")
