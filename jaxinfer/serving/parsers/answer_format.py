"""The format for parsing a request's answer: its parsers, and the state at its prompt's end."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jaxinfer.structured_outputs import ThinkingStage


@dataclass(frozen=True, kw_only=True)
class AnswerFormat:
    """A request's settings for parsing its answer; plain values, sent with the request.

    Attributes:
        reasoning: name of a reasoning parser; None leaves reasoning in the content.
        tools: name of a tool parser; None leaves calls in the content.
        schemas: the request's tools.
        parallel: pass on more than the first call.
        stage: the thinking's stage at the prompt's end.
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
        """True if calls are parsed, so that the tag of one ends open thinking."""
        return self.tools is not None

    def without_schemas(self) -> "AnswerFormat":
        """The fields that an engine needs which makes no text."""
        return replace(self, schemas=())
