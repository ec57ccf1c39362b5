"""The bodies of `/rerank` and `/score`, as Jina, Cohere and vLLM have them."""

from typing import Annotated, ClassVar, Literal, NotRequired, TypedDict

from pydantic import AliasChoices, Field

from jaxinfer.server.openai.protocol.base import Body
from jaxinfer.server.openai.protocol.pooling import MAX_TEXTS, PoolingAnswer, PoolingBody


class TextDocument(Body):
    """A document as an object."""

    text: str


Documents = Annotated[list[str | TextDocument], Field(min_length=1, max_length=MAX_TEXTS)]
Texts = str | Annotated[list[str], Field(min_length=1, max_length=MAX_TEXTS)]


class RerankBody(PoolingBody):
    """A request for documents by their relevance to a query."""

    hints: ClassVar = {
        "rank_fields": "documents have one field, text",
        "max_chunks_per_doc": "a document that is too long is cut at its end",
        "max_tokens_per_doc": "a document that is too long is cut at its end",
        "truncate_prompt_tokens": "a document that is too long is cut at its end",
    }

    query: str
    documents: Documents
    top_n: Annotated[int, Field(ge=0, lt=2**31)] | None = Field(
        None, description="Results to return; 0 or left out, all."
    )
    return_documents: bool | None = Field(None, description="false leaves documents out.")
    instruction: str | None = Field(None, description="What makes a document relevant.")

    @property
    def texts(self) -> list[str]:
        """The documents' texts."""
        return [each if isinstance(each, str) else each.text for each in self.documents]


class RerankedDocument(TypedDict):
    """A document of an answer."""

    text: str


class RerankResult(TypedDict):
    """A document's relevance, and its place in the request."""

    index: int
    relevance_score: float
    document: NotRequired[RerankedDocument]


class RerankAnswer(PoolingAnswer):
    """An answer, with the most relevant document first."""

    results: list[RerankResult]


class ScoreBody(PoolingBody):
    """A request for scores of pairs of texts."""

    hints: ClassVar = {
        "truncate_prompt_tokens": "a second text that is too long is cut at its end",
        "input": "write text_1 and text_2",
        "prompt": "write text_1 and text_2",
    }

    text_1: Texts = Field(
        validation_alias=AliasChoices("text_1", "queries", "data_1"),
        description="A text for each of text_2, or as many; also called queries or data_1.",
    )
    text_2: Texts = Field(
        validation_alias=AliasChoices("text_2", "documents", "data_2", "items"),
        description="A text or several; also called documents, data_2 or items.",
    )
    instruction: str | None = Field(None, description="What makes a text relevant, for a reranker.")


class Score(TypedDict):
    """The score of a pair."""

    index: int
    object: Literal["score"]
    score: float


class ScoreAnswer(PoolingAnswer):
    """An answer, with a score for each pair in order."""

    data: list[Score]
