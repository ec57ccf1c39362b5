"""The bodies of `/v1/embeddings`: requests and answers."""

from typing import Annotated, Any, ClassVar, Literal, TypedDict

from pydantic import Field, WithJsonSchema, field_validator

from jaxinfer.server.openai.protocol.pooling import PoolingBody, PoolingUsage
from jaxinfer.server.openai.protocol.prompts import (
    PROMPT_SCHEMA,
    TextOrTokens,
    check_prompts,
    listed_prompts,
)

_MAX_INT32 = 2**31 - 1


class EmbeddingBody(PoolingBody):
    """A request for texts as vectors."""

    hints: ClassVar = {
        "prompt": "write input",
        "messages": "write input",
        "instruction": "write prompt_name, or put it in front of the text",
        "use_activation": "write normalize",
    }

    input: Annotated[Any, WithJsonSchema(PROMPT_SCHEMA)]
    encoding_format: Literal["float", "base64"] | None = Field(
        None, description="float; base64 is of float32 values, little-endian."
    )
    dimensions: Annotated[int, Field(ge=1, le=_MAX_INT32)] | None = Field(
        None, description="Leading values to keep, of a model that is trained for it."
    )
    normalize: bool | None = Field(None, description="true: each vector has length 1.")
    prompt_name: str | None = Field(
        None, description="The model's own prompt to put in front of each text."
    )
    add_special_tokens: bool | None = None

    @field_validator("input", mode="after")
    @classmethod
    def _check_input(cls, given: Any) -> Any:
        """Refuse a malformed input."""
        return check_prompts(given)

    @property
    def inputs(self) -> list[TextOrTokens]:
        """The inputs as a list."""
        return listed_prompts(self.input)


class Embedding(TypedDict):
    """A text as a vector: numbers, or a base64 text of them."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingAnswer(TypedDict):
    """An answer, with a vector for each input in order."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    system_fingerprint: str
    data: list[Embedding]
    usage: PoolingUsage
