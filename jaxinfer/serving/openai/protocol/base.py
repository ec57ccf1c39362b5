"""The base of all request bodies: strict types, and fields that are refused or ignored."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

_HINTS = {
    "reasoning_effort": "efforts mean nothing to this model; write thinking_token_budget, or "
    "chat_template_kwargs.enable_thinking",
    "reasoning": "efforts mean nothing to this model; write thinking_token_budget, or "
    "chat_template_kwargs.enable_thinking",
    "chat_template": "templates of requests are refused; the model's own is used",
    "suffix": "this model completes at the end only",
    "audio": "this model reads and writes text",
    "functions": "write tools",
    "function_call": "write tool_choice",
    "use_beam_search": "beams are not supported; write n",
    "previous_response_id": "answers are not stored; send the whole conversation as input",
    "conversation": "answers are not stored; send the whole conversation as input",
    "prompt": "stored prompts are not supported; write input",
}


def _check_bool(value: Any) -> Any:
    """A literal of pydantic's would take 0.0 for false."""
    if value is not None and type(value) is not bool:
        raise ValueError("must be true or false")
    return value


OnlyTrue = Annotated[Literal[True] | None, BeforeValidator(_check_bool)]
OnlyFalse = Annotated[Literal[False] | None, BeforeValidator(_check_bool)]
Refused = Annotated[None, Field(description="Not supported: any value but null is refused.")]
Ignored = Annotated[Any, Field(description="Accepted, and without effect.")]


class Body(BaseModel):
    """A JSON object with these fields and no others; null is the same as leaving a field out."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class StreamOptions(Body):
    """What a stream reports beside its text."""

    include_usage: bool | None = Field(None, description="A last chunk has the usage.")
    continuous_usage_stats: bool | None = Field(None, description="Every chunk has it so far.")
    include_obfuscation: Ignored = None


def hint(field: str) -> str:
    """The error of a field that is refused."""
    return f"{field}: {_HINTS.get(field, 'not supported; leave it out')}"
