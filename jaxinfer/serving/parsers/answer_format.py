"""The format in which a request's answer is read: its parsers, and where its prompt ends."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jaxinfer.structured_outputs import ThinkingStage


@dataclass(frozen=True, kw_only=True)
class AnswerFormat:
    """What a request says of its answer's parts; plain values, as it travels with the request.

    Attributes:
        reasoning: name of a reasoning parser; None leaves reasoning in the content.
        tools: name of a tool parser; None leaves calls in the content.
        schemas: the request's tools.
        parallel: pass on more than the first call.
        stage: of the prompt's end.
        tags_are_tokens: the model has tokens for the tags around its reasoning, and only these are
            tags.
    """

    reasoning: str | None = None
    tools: str | None = None
    schemas: Sequence[Mapping[str, Any]] = ()
    parallel: bool = True
    stage: ThinkingStage = "over"
    tags_are_tokens: bool = False

    @property
    def has_calls(self) -> bool:
        """Whether calls are read, so that the tag of one ends thinking that is open."""
        return self.tools is not None

    def without_schemas(self) -> "AnswerFormat":
        """What of it an engine needs that makes no text."""
        return replace(self, schemas=())
