"""The bodies of `/v1/completions`: requests, answers and chunks of a stream."""

from typing import Annotated, ClassVar, Literal, NotRequired, TypedDict

from pydantic import Field

from jaxinfer.server.openai.errors import invalid
from jaxinfer.server.openai.protocol.answers import PromptLogprobs, Usage
from jaxinfer.server.openai.protocol.base import Refused
from jaxinfer.server.openai.protocol.prompts import Prompts, TextOrTokens, listed_prompts
from jaxinfer.server.openai.protocol.sampling import MAX_LOGPROBS, Count, SamplingFields

MAX_TOKENS = 16


class CompletionBody(SamplingFields):
    """A request for the continuation of prompts."""

    hints: ClassVar = {
        "messages": "write prompt, or use /v1/chat/completions",
        "input": "write prompt",
        "max_completion_tokens": "write max_tokens",
        "top_logprobs": "write logprobs",
    }

    prompt: Prompts
    max_tokens: Count | None = Field(None, description="16; 0 goes with echo.")
    echo: bool | None = Field(None, description="The answer begins with the prompt.")
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    best_of: Annotated[int, Field(ge=1)] | None = Field(None, description="Only as n.")
    add_special_tokens: bool | None = None

    suffix: Refused = None

    @property
    def prompts(self) -> list[TextOrTokens]:
        """The prompts as a list."""
        return listed_prompts(self.prompt)

    def check_together(self) -> None:
        """Refuse fields that contradict each other, those of `SamplingFields` included."""
        super().check_together()
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise invalid("best_of must equal n; write n and choose among them", "best_of")
        if self.max_tokens == 0 and not self.echo:
            raise invalid("max_tokens 0 goes with echo: true; else ask for 1 or more", "max_tokens")


class CompletionLogprobs(TypedDict):
    """Log-probabilities of a choice's tokens; minus infinity is -9999.

    `token_logprobs` and `top_logprobs` begin with null where the prompt is part of the text.
    `text_offset` counts characters of the choice's text.
    """

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(TypedDict):
    """One continuation; choice i*n + j is the j-th of prompt i."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str | None
    stop_reason: int | str | None
    token_ids: NotRequired[list[int] | None]
    prompt_token_ids: NotRequired[list[int] | None]
    prompt_logprobs: NotRequired[PromptLogprobs | None]


class CompletionAnswer(TypedDict):
    """An answer, or a chunk of a stream."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    service_tier: NotRequired[None]
    choices: list[CompletionChoice]
    usage: Usage
