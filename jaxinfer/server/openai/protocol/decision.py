"""The bodies of `/v1/decisions` and `/classify`: requests and answers."""

from typing import Annotated, ClassVar, Literal, TypedDict

from pydantic import Field

from jaxinfer.server.openai.protocol.pooling import InputBody, PoolingAnswer, PoolingBody
from jaxinfer.server.openai.protocol.prompts import Prompts, TextOrTokens, listed_prompts
from jaxinfer.serving.pooling.decisions import LONGEST_LABEL, MAX_LABELS

Label = Annotated[str, Field(min_length=1, max_length=LONGEST_LABEL)]
Labels = Annotated[list[Label], Field(min_length=2, max_length=MAX_LABELS)]


class DecisionBody(PoolingBody):
    """A request for the probabilities of labels after prompts."""

    hints: ClassVar = {
        "messages": "send prompt: the conversation in the model's template",
        "input": "write prompt",
    }

    prompt: Prompts
    labels: Labels = Field(description="Texts that each go on from every prompt.")
    add_special_tokens: bool | None = None

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


class DecisionAnswer(PoolingAnswer):
    """An answer, with a decision for each prompt in order."""

    data: list[DecisionEntry]


class ClassifyBody(InputBody):
    """A request for the classes of prompts."""

    hints: ClassVar = {"messages": "send input: the conversation in the model's template"}

    labels: Labels | None = Field(
        None,
        description="The classes of a language model: texts that each go on from every input; left "
        "out for a model with a classifying head.",
    )


class Classification(TypedDict):
    """The class of an input, and the probabilities of all in the labels' order."""

    index: int
    label: str
    probs: list[float]
    num_classes: int


class ClassifyAnswer(PoolingAnswer):
    """An answer, with a class for each input in order."""

    data: list[Classification]
