"""An item: the record of a question and its reply, for training text and held-out questions."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from scripts.evaluation.items.split import is_held_out

Message = Mapping[str, Any]
MAX_DRAWS = 10_000
"""Draws without an item of the wanted side after which a generator is at fault."""


@dataclass(frozen=True, kw_only=True)
class Item:
    """A question, its reply, and the key that decides whether it is held out.

    Attributes:
      kind: the generator that made it: "sum", "tool_call", ...
      key: names the part that must be unseen for a fair test; see `is_held_out`.
      messages: the conversation up to the reply; empty for plain text.
      tools: function descriptions offered in the system turn.
      prompt: the start of a plain text, where there are no messages.
      reasoning: what a thinking reply writes between `<think>` and `</think>`.
      answer: the reply itself.
    """

    kind: str
    key: str
    messages: tuple[Message, ...] = ()
    tools: tuple[Mapping[str, Any], ...] = ()
    prompt: str = ""
    reasoning: str = ""
    answer: str


def draw_from_split(make: Callable[[Random], Item], rng: Random, held_out: bool) -> Item:
    """Draws from `make` until an item falls on the wanted side of the split.

    Raises:
      ValueError: no such item came in `MAX_DRAWS` draws: the generator has too few keys.
    """
    for _ in range(MAX_DRAWS):
        item = make(rng)
        if is_held_out(item.key) == held_out:
            return item
    side = "held-out" if held_out else "training"
    raise ValueError(f"{make.__name__} made no {side} item in {MAX_DRAWS} draws")
