"""A chat with a running server, without a package: python examples/client.py QUESTION.

`python -m jaxinfer.serve` starts the server; any client of OpenAI's API works as well.
"""

import json
import sys
import urllib.request
from collections.abc import Iterator


def ask(question: str, url: str = "http://127.0.0.1:8000") -> Iterator[str]:
    """Yield the pieces of an answer as the server sends them."""
    body = {
        "model": "jaxinfer",
        "messages": [{"role": "user", "content": question}],
        "max_tokens": 40,
        "stream": True,
    }
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), headers
    )
    with urllib.request.urlopen(request) as response:
        for line in response:  # server-sent events: "data: {...}", and an empty line
            data = line.decode().removeprefix("data: ").strip()
            if data and data != "[DONE]":
                yield json.loads(data)["choices"][0]["delta"].get("content") or ""


if __name__ == "__main__":
    for piece in ask(" ".join(sys.argv[1:]) or "What is 2 + 3?"):
        print(piece, end="", flush=True)
    print()
