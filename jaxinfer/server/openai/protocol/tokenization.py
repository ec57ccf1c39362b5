"""The request bodies of `/tokenize` and `/detokenize`."""

from typing import Annotated, Any

from pydantic import Field

from jaxinfer.server.openai.errors import invalid
from jaxinfer.server.openai.protocol.base import Body, Ignored, Refused
from jaxinfer.server.openai.protocol.chat import MAX_MESSAGES, Message
from jaxinfer.server.openai.protocol.sampling import TokenId
from jaxinfer.server.openai.protocol.tools import Tools


class TokenizeBody(Body):
    """A text or a conversation."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES)] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: Tools | None = None
    return_token_strs: bool | None = None
    chat_template: Refused = None
    user: Ignored = None

    def check_together(self) -> None:
        """Refuse both or neither by an ApiError 400."""
        if (self.prompt is None) == (self.messages is None):
            raise invalid("send either prompt or messages", "prompt")


class DetokenizeBody(Body):
    """Token ids."""

    model: str | None = None
    tokens: Annotated[list[TokenId], Field(fail_fast=True)]
