"""What a reader does on the page, and what they see; and the same by the API alone."""

import json
import urllib.request


def post_chat(site, text, **fields):
    """The answer to a message."""
    body = {"messages": [{"role": "user", "content": text}], **fields}
    request = urllib.request.Request(
        site + "v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)


def say(page, text):
    """Send a message with the Enter key."""
    page.fill("#prompt", text)
    page.press("#prompt", "Enter")


def answered(page, text=None):
    """The last answer once it is complete; with `text`, after it was sent."""
    if text is not None:
        say(page, text)
    answer = page.locator(".turn:last-child.answer:not(.growing)")
    answer.wait_for()
    return answer


def part(answer, name):
    """A part of an answer."""
    return answer.locator(f"[data-part={name}]")


def set_field(page, name, value):
    """Fill a field of the settings in."""
    page.click("#open-settings")
    page.fill(f"#settings [name={name}]", value)
    page.press(f"#settings [name={name}]", "Escape")


def events(*chunks):
    """A whole stream of a chat, of deltas."""
    lines = [
        json.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
        for delta in chunks
    ]
    return "".join(f"data: {line}\n\n" for line in [*lines, "[DONE]"])
