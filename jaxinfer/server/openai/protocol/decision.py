"""The bodies of `/v1/decisions` and `/classify`: requests and answers."""

from typing import Annotated, Any, ClassVar, Literal, TypedDict

from pydantic import Field, WithJsonSchema, field_validator

from jaxinfer.server.openai.protocol.pooling import PoolingBody, PoolingUsage
from jaxinfer.server.openai.protocol.prompts import (
    PROMPT_SCHEMA,
    TextOrTokens,
    check_prompts,
    listed_prompts,
)
from jaxinfer.serving.pooling.decisions import LONGEST_LABEL, MAX_LABELS

Label = Annotated[str, Field(min_length=1, max_length=LONGEST_LABEL)]
Labels = Annotated[list[Label], Field(min_length=2, max_length=MAX_LABELS)]
_Prompts = Annotated[Any, WithJsonSchema(PROMPT_SCHEMA)]


class DecisionBody(PoolingBody):
    """A request for the probabilities of labels after prompts."""

    hints: ClassVar = {
        "messages": "send prompt: the conversation in the model's template",
        "input": "write prompt",
    }

    prompt: _Prompts
    labels: Labels = Field(description="Texts that each go on from every prompt.")
    add_special_tokens: bool | None = None

    @field_validator("prompt", mode="after")
    @classmethod
    def _check_prompt(cls, given: Any) -> Any:
        """Refuse a malformed prompt."""
        return check_prompts(given)

    @property
    def prompts(self) -> list[TextOrTokens]:
        """The prompts as a list."""
        return listed_prompts(self.prompt)


class DecisionEntry(TypedDict):
    """The labels' probabilities after a prompt."""

    index: int
    object: Literal["decision"]
    label: str
    probabilities: dict[str, float]
    logits: dict[str, float]


class DecisionAnswer(TypedDict):
    """An answer, with a decision for each prompt in order."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    system_fingerprint: str
    data: list[DecisionEntry]
    usage: PoolingUsage


class ClassifyBody(PoolingBody):
    """A request for the classes of prompts."""

    hints: ClassVar = {"messages": "send input: the conversation in the model's template"}

    input: _Prompts
    labels: Labels | None = Field(
        None,
        description="The classes of a language model: texts that each go on from every input; left "
        "out for a model with a classifying head.",
    )
    add_special_tokens: bool | None = None

    @field_validator("input", mode="after")
    @classmethod
    def _check_input(cls, given: Any) -> Any:
        """Refuse a malformed input."""
        return check_prompts(given)

    @property
    def prompts(self) -> list[TextOrTokens]:
        """The inputs as a list."""
        return listed_prompts(self.input)


class Classification(TypedDict):
    """The class of an input, and the probabilities of all in the labels' order."""

    index: int
    label: str
    probs: list[float]
    num_classes: int


class ClassifyAnswer(TypedDict):
    """An answer, with a class for each input in order."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    system_fingerprint: str
    data: list[Classification]
    usage: PoolingUsage
