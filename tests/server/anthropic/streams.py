"""Reads streams of `/v1/messages` as a client does."""

import copy
import json

from jaxinfer.server.anthropic.events import input_of

_TEXTS = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}


def events_of(text):
    """The JSON of each event but pings; an event's name is its type."""
    events = []
    for block in text.strip().split("\n\n"):
        name, data = block.split("\n")
        value = json.loads(data.removeprefix("data: "))
        assert name == f"event: {value['type']}"
        events.append(value)
    return [event for event in events if event["type"] != "ping"]


def kinds_of(events):
    """Types of events, of deltas in a row one."""
    kinds = [e["delta"]["type"] if "index" in e and "delta" in e else e["type"] for e in events]
    return [kind for i, kind in enumerate(kinds) if i == 0 or kind != kinds[i - 1]]


def put_together(events):
    """The message that a stream's events make; their order is checked."""
    first, *events, last = events
    assert (first["type"], last["type"]) == ("message_start", "message_stop")
    message, open_index, arguments = copy.deepcopy(first["message"]), None, ""
    for event in events:
        match event["type"]:
            case "content_block_start":
                assert open_index is None
                open_index, arguments = event["index"], ""
                assert open_index == len(message["content"])
                message["content"].append(event["content_block"])
            case "content_block_delta":
                assert event["index"] == open_index
                block, delta = message["content"][open_index], event["delta"]
                if delta["type"] == "signature_delta":
                    block["signature"] = delta["signature"]
                elif delta["type"] == "input_json_delta":
                    arguments += delta["partial_json"]
                else:
                    block[_TEXTS[delta["type"]]] += delta[_TEXTS[delta["type"]]]
            case "content_block_stop":
                assert event["index"] == open_index
                open_index = None
                if message["content"][-1]["type"] == "tool_use":
                    message["content"][-1]["input"] = input_of(arguments)
            case "message_delta":
                assert open_index is None
                message |= event["delta"] | {"usage": event["usage"]}
            case kind:
                raise AssertionError(kind)
    return message


def without_ids(message):
    """A message without what differs from answer to answer."""
    blocks = [{k: v for k, v in block.items() if k != "id"} for block in message["content"]]
    return {k: v for k, v in message.items() if k not in ("id", "usage")} | {"content": blocks}
