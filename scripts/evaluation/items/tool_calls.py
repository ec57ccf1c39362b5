"""Generates questions that need tools, in Qwen3's tool format, and replies to tools' results."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from scripts.evaluation.items import lexicon
from scripts.evaluation.items.item import Item, Message

MAX_TOOLS = 3
"""Tools offered in one conversation, at most."""


@dataclass(frozen=True)
class ToolUse:
    """One call, its question, the tool's result, and the reply."""

    question: str
    name: str
    arguments: Mapping[str, Any]
    result: Mapping[str, Any]
    reply: str

    @property
    def text(self) -> str:
        """The call as the model writes it."""
        call = {"name": self.name, "arguments": dict(self.arguments)}
        return f"<tool_call>\n{json.dumps(call, ensure_ascii=False)}\n</tool_call>"


def _describe(name: str, description: str, **types: str) -> Mapping[str, Any]:
    properties = {field: {"type": kind} for field, kind in types.items()}
    schema = {"type": "object", "properties": properties, "required": list(types)}
    function = {"name": name, "description": description, "parameters": schema}
    return {"type": "function", "function": function}


def _weather(rng: Random) -> ToolUse:
    city, weather, degrees = (
        rng.choice(lexicon.CITIES),
        rng.choice(lexicon.WEATHERS),
        rng.randint(0, 35),
    )
    question = rng.choice(
        (
            "What is the weather in {}?",
            "How is the weather in {} today?",
            "Is it sunny in {}?",
            "Tell me the weather in {}, please.",
        )
    ).format(city)
    return ToolUse(
        question,
        "get_weather",
        {"city": city},
        {"weather": weather, "degrees": degrees},
        f"It is {weather} in {city}, with {degrees} degrees.",
    )


def _time(rng: Random) -> ToolUse:
    city, hour, minute = rng.choice(lexicon.CITIES), rng.randint(0, 23), rng.randint(0, 59)
    question = rng.choice(
        ("What time is it in {}?", "Tell me the time in {}.", "How late is it in {} now?")
    ).format(city)
    time = f"{hour:02}:{minute:02}"
    return ToolUse(question, "get_time", {"city": city}, {"time": time}, f"It is {time} in {city}.")


def _timer(rng: Random) -> ToolUse:
    minutes, label = rng.randint(2, 90), rng.choice(lexicon.FOODS)
    question = rng.choice(
        (
            "Set a timer of {} minutes for the {}.",
            "Please start a timer for {} minutes for the {}.",
            "I need a timer: {} minutes, for {}.",
        )
    ).format(minutes, label)
    return ToolUse(
        question,
        "set_timer",
        {"minutes": minutes, "label": label},
        {"ok": True},
        f"The timer for the {label} is set to {minutes} minutes.",
    )


def _message(rng: Random) -> ToolUse:
    name, text = rng.choice(lexicon.NAMES), rng.choice(
        (
            "I am late",
            "See you soon",
            "Happy birthday 🎂",
            "Dinner is ready",
            "Good night",
            "Thank you",
        )
    )  # fmt: skip
    question = rng.choice(
        ('Send "{1}" to {0}.', 'Write {0} a message: "{1}"', 'Please tell {0} "{1}".')
    ).format(name, text)
    return ToolUse(
        question,
        "send_message",
        {"to": name, "text": text},
        {"sent": True},
        f"I have sent your message to {name}.",
    )


def _event(rng: Random) -> ToolUse:
    day, name, hour = rng.choice(lexicon.DAYS), rng.choice(lexicon.NAMES), rng.randint(8, 20)
    question = rng.choice(
        (
            "Add a meeting with {1} on {0} at {2}.",
            "I meet {1} on {0} at {2}. Put it in my calendar.",
            "Please plan a meeting with {1} for {0} at {2}.",
        )
    ).format(day, name, hour)
    return ToolUse(
        question,
        "add_event",
        {"with": name, "day": day, "hour": hour},
        {"ok": True},
        f"The meeting with {name} is on {day} at {hour}.",
    )


TOOLS: Mapping[str, tuple[Mapping[str, Any], Callable[[Random], ToolUse]]] = {
    "get_weather": (_describe("get_weather", "Current weather", city="string"), _weather),
    "get_time": (_describe("get_time", "Local time", city="string"), _time),
    "set_timer": (
        _describe("set_timer", "Start a timer", minutes="integer", label="string"),
        _timer,
    ),
    "send_message": (
        _describe("send_message", "Send a message", to="string", text="string"),
        _message,
    ),
    "add_event": (
        _describe(
            "add_event", "Add to calendar", **{"with": "string"}, day="string", hour="integer"
        ),
        _event,
    ),
}


def _draw_use(rng: Random) -> tuple[ToolUse, tuple[Mapping[str, Any], ...]]:
    """A call and the tools offered: the one it needs among up to two others, in any order."""
    offered = rng.sample(sorted(TOOLS), rng.randint(1, MAX_TOOLS))
    use = TOOLS[rng.choice(offered)][1](rng)
    return use, tuple(TOOLS[name][0] for name in offered)


def _key(use: ToolUse) -> str:
    return f"tool {use.name} {json.dumps(dict(use.arguments), ensure_ascii=False)} {use.question}"


def _as_message(*uses: ToolUse) -> Message:
    calls = [
        {"type": "function", "function": {"name": use.name, "arguments": dict(use.arguments)}}
        for use in uses
    ]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def make_tool_call(rng: Random) -> Item:
    """A question that one of the offered tools answers; the reply is the call.

    The key is the call with the words that ask for it.
    """
    use, tools = _draw_use(rng)
    return Item(
        kind="tool_call",
        key=_key(use),
        messages=({"role": "user", "content": use.question},),
        tools=tools,
        reasoning=f"The user needs a tool. I call {use.name}.",
        answer=use.text,
    )


def make_tool_reply(rng: Random) -> Item:
    """A tool has answered; the reply says so in words."""
    use, tools = _draw_use(rng)
    result = json.dumps(dict(use.result), ensure_ascii=False)
    return Item(
        kind="chat",
        key=_key(use),
        messages=(
            {"role": "user", "content": use.question},
            _as_message(use),
            {"role": "tool", "content": result},
        ),
        tools=tools,
        reasoning=f"The tool {use.name} has answered.",
        answer=use.reply,
    )
