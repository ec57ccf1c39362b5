"""Makes the chunks of a stream: events that share most of their fields."""

from collections.abc import Mapping
from typing import Any

from jaxinfer.serving.openai.protocol.base import StreamOptions
from jaxinfer.serving.openai.sse import encode


class Chunks:
    """Makes the events of one stream; what they share is encoded once.

    Args:
        begin: the fields that all have.
        options: what the stream reports; without usage its chunks have no such field.
    """

    def __init__(self, begin: Mapping[str, Any], options: StreamOptions | None) -> None:
        self.each_has_usage = bool(options and options.continuous_usage_stats)
        self.ends_with_usage = bool(options and options.include_usage)
        self._begin = b"data: " + encode(begin)[:-1] + b',"choices":['

    def event(self, choice: Any, usage: Any = None) -> bytes:
        """A chunk with one choice, or with none."""
        written = b"" if choice is None else encode(choice)
        if self.each_has_usage or self.ends_with_usage:  # the field is null in other chunks
            return self._begin + written + b'],"usage":' + encode(usage) + b"}\n\n"
        return self._begin + written + b"]}\n\n"
