"""Shared by the bodies of routes that only read prompts: their common fields and their usage."""

from typing import Annotated, Literal, TypedDict

from pydantic import Field

from jaxinfer.server.openai.protocol.answers import PromptTokensDetails
from jaxinfer.server.openai.protocol.base import ClientFields
from jaxinfer.server.openai.protocol.prompts import Prompts, TextOrTokens, listed_prompts

MAX_TEXTS = 1024
"""Most texts of a list in a request."""

_INT64 = 2**63


class PoolingBody(ClientFields):
    """A request whose prompts are read and not continued."""

    model: str | None = Field(None, description="A served name; left out, the one there is.")
    priority: Annotated[int, Field(ge=-_INT64, lt=_INT64)] | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    request_id: Annotated[str, Field(max_length=1024)] | None = Field(
        None, description="Returned as the header X-Request-Id; nothing is looked up by it."
    )


class InputBody(PoolingBody):
    """A request whose prompts are in `input`."""

    input: Prompts
    add_special_tokens: bool | None = None

    @property
    def prompts(self) -> list[TextOrTokens]:
        """The inputs as a list."""
        return listed_prompts(self.input)


class PoolingUsage(TypedDict):
    """Tokens of all prompts."""

    prompt_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class PoolingAnswer(TypedDict):
    """What the answers have in common."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    system_fingerprint: str
    usage: PoolingUsage
