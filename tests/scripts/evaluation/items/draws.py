"""Draws for tests of generators, and the text that they are judged by."""

import json
import re
from collections.abc import Callable
from random import Random

from scripts.evaluation.grading import tool_calls
from scripts.evaluation.items.item import Item, draw_from_split
from scripts.evaluation.items.split import is_held_out

SUM = re.compile(r"(\d+) (?:\+|and) (\d+)")


def draw(
    make: Callable[[Random], Item], count: int, *, held_out: bool = False, seed: int = 0
) -> list[Item]:
    rng = Random(seed)
    return [draw_from_split(make, rng, held_out) for _ in range(count)]


def conversation(item: Item) -> str:
    return json.dumps([item.messages, item.tools, item.prompt], ensure_ascii=False)


def check_draws_depend_on_the_seed_alone(make: Callable[[Random], Item]) -> None:
    assert draw(make, 20) == draw(make, 20)
    assert draw(make, 20) != draw(make, 20, seed=1)


def check_training_and_held_out_items_share_no_key(make: Callable[[Random], Item]) -> None:
    training = {item.key for item in draw(make, 200)}
    held_out = {item.key for item in draw(make, 30, held_out=True)}
    assert not training & held_out
    assert all(map(is_held_out, held_out))


def check_training_text_holds_no_held_out_sum(make: Callable[[Random], Item]) -> None:
    """In either order."""
    for item in draw(make, 200):
        for a, b in SUM.findall(conversation(item)):
            low, high = sorted((int(a), int(b)))
            assert not is_held_out(f"sum {low} {high}")


def check_calls_are_offered_and_have_all_their_arguments(make: Callable[[Random], Item]) -> None:
    for item in draw(make, 200):
        offered = {tool["function"]["name"]: tool["function"] for tool in item.tools}
        calls = tool_calls(item.answer)
        assert calls
        for call in calls:
            required = offered[call["name"]]["parameters"]["required"]
            assert list(call["arguments"]) == required
