"""The bodies of `/v1/decisions` and `/classify`: requests and answers."""

from typing import Annotated, Any, ClassVar, Literal, TypedDict

from pydantic import Discriminator, Field, Tag

from jaxinfer.server.openai.errors import invalid
from jaxinfer.server.openai.protocol.chat import MAX_MESSAGES, Message
from jaxinfer.server.openai.protocol.pooling import InputBody, PoolingAnswer, PoolingBody
from jaxinfer.server.openai.protocol.prompts import (
    MAX_PROMPTS,
    Prompts,
    TextOrTokens,
    listed_prompts,
)
from jaxinfer.server.openai.protocol.tools import Tools
from jaxinfer.serving.pooling.decisions import LONGEST_LABEL, MAX_LABELS

Label = Annotated[str, Field(min_length=1, max_length=LONGEST_LABEL)]
Labels = Annotated[list[Label], Field(min_length=2, max_length=MAX_LABELS)]

Conversation = Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES)]


def _one_or_several(given: Any) -> str:
    """The alternative that is meant, so that an error names the field at fault in it alone."""
    several = isinstance(given, list) and given and isinstance(given[0], list)
    return "Conversations" if several else "Conversation"


class DecisionBody(PoolingBody):
    """A request for the probabilities of labels after prompts, or after conversations."""

    hints: ClassVar = {
        "input": "write prompt",
        "reasoning_effort": 'write chat_template_kwargs: {"enable_thinking": false}',
    }

    prompt: Prompts | None = None
    messages: (
        Annotated[
            Annotated[Conversation, Tag("Conversation")]
            | Annotated[
                list[Conversation],
                Field(min_length=1, max_length=MAX_PROMPTS),
                Tag("Conversations"),
            ],
            Discriminator(_one_or_several),
        ]
        | None
    ) = Field(None, description="In place of a prompt: a conversation, or a list of several.")
    labels: Labels = Field(description="Texts that each go on from every prompt.")
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: Tools | None = Field(None, description="Written into every conversation.")

    def check_together(self) -> None:
        """Refuse prompts and messages, or neither, and fields of a template without messages.

        Raises:
            ApiError: 400.
        """
        if (self.prompt is None) == (self.messages is None):
            raise invalid("send either prompt or messages", "prompt")
        if self.messages is None:
            for name in _OF_MESSAGES:
                if getattr(self, name) is not None:
                    raise invalid(f"{name} goes with messages; a prompt is read as it is", name)

    @property
    def prompts(self) -> list[TextOrTokens]:
        """The prompts as a list; empty of a request with messages."""
        return [] if self.prompt is None else listed_prompts(self.prompt)

    @property
    def conversations(self) -> list[list[Message]]:
        """The conversations as a list; empty of a request with a prompt."""
        given: Any = self.messages or []
        return [given] if given and isinstance(given[0], Message) else given


_OF_MESSAGES = ("add_generation_prompt", "continue_final_message", "chat_template_kwargs", "tools")


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

    hints: ClassVar = {
        "messages": "send input, in the model's template, or POST messages to decisions"
    }

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
