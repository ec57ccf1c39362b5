"""Reads streams of events as a client does."""

import json


def events_of(text):
    """The JSON of each `data:` event but `[DONE]`, which must be the last."""
    events = [each for each in text.split("\n\n") if each and not each.startswith(":")]
    assert events[-1] == "data: [DONE]"
    return [json.loads(each.removeprefix("data: ")) for each in events[:-1]]


def texts_of(events, count=1):
    """Each choice's text, put together."""
    texts = [""] * count
    for event in events:
        for choice in event["choices"]:
            texts[choice["index"]] += (
                choice["text"] if "text" in choice else choice["delta"].get("content", "")
            )
    return texts
