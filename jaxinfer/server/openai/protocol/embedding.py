"""The bodies of `/v1/embeddings`: requests and answers."""

from typing import Annotated, ClassVar, Literal, TypedDict

from pydantic import Field

from jaxinfer.server.openai.protocol.pooling import InputBody, PoolingAnswer

_MAX_INT32 = 2**31 - 1


class EmbeddingBody(InputBody):
    """A request for texts as vectors."""

    hints: ClassVar = {
        "prompt": "write input",
        "messages": "write input",
        "instruction": "write prompt_name, or put it in front of the text",
        "use_activation": "write normalize",
    }

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


class Embedding(TypedDict):
    """A text as a vector: numbers, or a base64 text of them."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingAnswer(PoolingAnswer):
    """An answer, with a vector for each input in order."""

    data: list[Embedding]
