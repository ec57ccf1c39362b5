"""Turns an item into the exact text that the engine would send, and the reply that should come."""

import functools
import json
from pathlib import Path

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from scripts.bundled_model.tokenizer import END_OF_TEXT, TURN_END
from scripts.evaluation.items.item import Item

TEMPLATE = Path(__file__).parents[2] / "jaxinfer/assets/model/chat_template.jinja"


@functools.cache
def _chat_template() -> jinja2.Template:
    """The bundled template, which is ours and trusted: the engine's guarded worker is slower."""
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    return environment.from_string(TEMPLATE.read_text(encoding="utf-8"))


def prompt_text(item: Item, thinking: bool) -> str:
    """The prompt: all text before the reply."""
    if not item.messages:
        return item.prompt
    return _chat_template().render(
        messages=item.messages,
        tools=item.tools,
        add_generation_prompt=True,
        enable_thinking=thinking,
    )


def reply_text(item: Item, thinking: bool) -> str:
    """What the model should write, its end marker included."""
    if not item.messages:
        return item.answer + END_OF_TEXT
    think = f"<think>\n{item.reasoning}\n</think>\n\n" if thinking else ""
    return think + item.answer + TURN_END
