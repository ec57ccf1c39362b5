"""Every kind of item that evaluation asks, by name, and the held-out sets."""

from collections.abc import Callable, Mapping
from random import Random

from scripts.evaluation.items import chats, json_objects, stories, sums, tool_calls
from scripts.evaluation.items.item import Item, draw_from_split

GENERATORS: Mapping[str, Callable[[Random], Item]] = {
    "sum": sums.make_sum,
    "chat": chats.make_chat,
    "conversation": chats.make_conversation,
    "json": json_objects.make_json,
    "tool_call": tool_calls.make_tool_call,
    "tool_reply": tool_calls.make_tool_reply,
    "story": stories.make_story,
}

MAX_REPEATS = 500
"""Repeats in a row after which hardly any new items are left."""


def held_out_items(name: str, count: int, seed: int = 0) -> list[Item]:
    """The first `count` different held-out items of the generator `name`.

    The same name, count and seed always give the same items, and a larger count only appends.

    Raises:
      ValueError: no generator has that name, or it has fewer than `count` held-out items.
    """
    if name not in GENERATORS:
        raise ValueError(f"unknown kind of item {name!r}; known: {', '.join(GENERATORS)}")
    rng = Random(f"held out {name} {seed}")
    found: dict[str, Item] = {}
    repeats = 0
    while len(found) < count:
        item = draw_from_split(GENERATORS[name], rng, held_out=True)
        repeats = repeats + 1 if item.key in found else 0
        if repeats > MAX_REPEATS:
            raise ValueError(
                f"{name} has about {len(found)} held-out items, {count} were asked for"
            )
        found.setdefault(item.key, item)
    return list(found.values())
