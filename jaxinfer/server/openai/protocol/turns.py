"""Builds the turns of a conversation, as chat templates expect them, from smaller items."""

from typing import Any


def open_turn(turns: list[dict[str, Any]], role: str) -> dict[str, Any]:
    """The last turn if it is of this role, or a new and empty one."""
    if not turns or turns[-1]["role"] != role:
        turns.append({"role": role, "content": ""})
    return turns[-1]


def add_text(turn: dict[str, Any], name: str, text: str) -> None:
    """Append a text to one field of a turn, on a new line."""
    turn[name] = "\n".join(filter(None, (turn.get(name), text)))
