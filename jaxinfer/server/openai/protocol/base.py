"""The base of all request bodies: strict types, and fields that are refused or ignored."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

_HINTS = {
    "chat_template": "templates of requests are refused; the model's own is used",
    "suffix": "this model completes at the end only",
    "audio": "this model reads and writes text",
    "functions": "write tools",
    "function_call": "write tool_choice",
    "use_beam_search": "a server searches no beams, LLM.beam_search does; write n",
    "previous_response_id": "answers are not stored; send the whole conversation as input",
    "conversation": "answers are not stored; send the whole conversation as input",
    "prompt": "stored prompts are not supported; write input",
    "moderation": "answers are not moderated; leave it out",
    "background_options": "answers are not stored; leave it out",
    "image": "this model reads and writes text",
    "enable_thinking": 'write chat_template_kwargs: {"enable_thinking": ...}',
    "thinking": "write reasoning_effort or thinking_token_budget",
    "thinking_budget": "write thinking_token_budget",
    "logits_processors": "processors of requests are refused; write logit_bias or bad_words",
    "mm_processor_kwargs": "this model reads text; leave it out",
    "media_io_kwargs": "this model reads text; leave it out",
    "documents": "the model's template has no place for them; write them into a message",
    "vllm_xargs": "there are no plug-ins; leave it out",
    "kv_transfer_params": "keys and values are not sent to other servers; leave it out",
    "repetition_detection": "write frequency_penalty or max_tokens",
    "logprob_token_ids": "POST labels to decisions for their probabilities after a prompt, or "
    "write top_logprobs (logprobs for completions) for those of the likeliest tokens",
    "entropy": "a server sends none, LLM does (SamplingParams(entropy=True)); leave it out",
    "support": "a server sends none, LLM does (SamplingParams(support=N)); leave it out",
}


def _check_bool(value: Any) -> Any:
    """Refuse anything but true and false; pydantic's literals would accept 0.0 for false."""
    if value is not None and type(value) is not bool:
        raise ValueError("must be true or false")
    return value


def at_most(number: int) -> BeforeValidator:
    """Refuse an object of more keys at once: pydantic would check all, an error for each."""

    def check(given: Any) -> Any:
        if isinstance(given, dict) and len(given) > number:
            raise ValueError(f"must have at most {number} items, got {len(given)}")
        return given

    return BeforeValidator(check)


OnlyFalse = Annotated[Literal[False] | None, BeforeValidator(_check_bool)]
Refused = Annotated[None, Field(description="Not supported: any value but null is refused.")]
Ignored = Annotated[Any, Field(description="Accepted, and without effect.")]


class Body(BaseModel):
    """A JSON object with these fields and no others; null is the same as leaving a field out."""

    hints: ClassVar[Mapping[str, str]] = {}
    """Replacements of another API's fields."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class StreamOptions(Body):
    """A stream's reports beside its text."""

    include_usage: bool | None = Field(None, description="A last chunk has the usage.")
    continuous_usage_stats: bool | None = Field(
        None, description="Every chunk has it so far; goes with include_usage."
    )
    include_obfuscation: Ignored = None


class ClientFields(Body):
    """Fields about clients themselves and OpenAI's own service; none of them has an effect."""

    user: Ignored = None
    store: Ignored = None
    service_tier: Ignored = None
    prompt_cache_key: Ignored = None
    prompt_cache_retention: Ignored = None
    prompt_cache_options: Ignored = None
    safety_identifier: Ignored = None


def hint(field: str, body: type[Body] | None) -> str | None:
    """The suggested replacement of a refused field; None if there is none."""
    own = body.hints if body is not None else {}
    return own.get(field) or _HINTS.get(field)
