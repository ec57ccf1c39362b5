"""Makes the chunks of a stream: events that share most of their fields."""

from collections.abc import Mapping
from typing import Any

from jaxinfer.server.openai.protocol.base import StreamOptions
from jaxinfer.server.openai.sse import encode


class Chunks:
    """Makes the events of one stream; what they share is encoded once."""

    def __init__(self, begin: Mapping[str, Any], options: StreamOptions | None) -> None:
        self.ends_with_usage = bool(options and options.include_usage)
        is_continuous = bool(options and options.continuous_usage_stats)
        self.each_has_usage = self.ends_with_usage and is_continuous
        self._begin = b"data: " + encode(begin)[:-1] + b',"choices":['

    def event(self, choice: Any, usage: Any = None, **more: Any) -> bytes:
        """A chunk with one choice, or with none, and further fields of its own."""
        written = b"" if choice is None else encode(choice)
        end = b"]"
        if self.ends_with_usage:  # the field is null in other chunks
            end += b',"usage":' + encode(usage)
        for name, value in more.items():
            end += b',"' + name.encode() + b'":' + encode(value)
        return self._begin + written + end + b"}\n\n"
