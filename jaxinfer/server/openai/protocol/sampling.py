"""The sampling fields of a request body, shared by completions, chat and responses."""

from dataclasses import fields
from typing import Annotated, Any, Literal

from pydantic import Field

from jaxinfer.sampling_fields import (
    MAX_BAD_WORD_LENGTH,
    MAX_BAD_WORDS,
    MAX_BIAS,
    MAX_LOGIT_BIAS,
    MAX_REPETITION_PENALTY,
    MAX_STOP_TOKEN_IDS,
    MAX_TEMPERATURE,
    MAX_TIMEOUT,
)
from jaxinfer.sampling_params import SamplingParams
from jaxinfer.server.openai.errors import invalid
from jaxinfer.server.openai.protocol.base import (
    Body,
    ClientFields,
    Ignored,
    Refused,
    StreamOptions,
    at_most,
)
from jaxinfer.server.openai.protocol.structured import StructuredFields

MAX_N = 128
MAX_LOGPROBS = 20
MAX_STOP_STRINGS = 4
MAX_STOP_CHARS = 256
_MAX_INT32 = 2**31 - 1
_INT64 = 2**63

Count = Annotated[int, Field(ge=0, le=_MAX_INT32)]
TokenId = Annotated[int, Field(ge=0, le=_MAX_INT32)]
StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS)]
BadWord = Annotated[str, Field(min_length=1, max_length=MAX_BAD_WORD_LENGTH)]
Bias = Annotated[float, Field(ge=-MAX_BIAS, le=MAX_BIAS)]
Penalty = Annotated[float, Field(ge=-2, le=2)]

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class DrawFields(Body):
    """Sampling fields; one left out or null defaults to the model's `generation_config.json`."""

    temperature: Annotated[float, Field(ge=0, le=MAX_TEMPERATURE)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=_MAX_INT32)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-_INT64, lt=_INT64)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Field(ge=0.01, le=MAX_REPETITION_PENALTY)] | None = None
    stop: StopString | Annotated[list[StopString], Field(max_length=MAX_STOP_STRINGS)] | None = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=MAX_STOP_TOKEN_IDS)] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    min_tokens: Count | None = None
    skip_special_tokens: bool | None = None
    logit_bias: (
        Annotated[dict[str, Bias], Field(max_length=MAX_LOGIT_BIAS), at_most(MAX_LOGIT_BIAS)] | None
    ) = None
    allowed_token_ids: Annotated[list[TokenId], Field(min_length=1, fail_fast=True)] | None = None
    bad_words: Annotated[list[BadWord], Field(max_length=MAX_BAD_WORDS)] | None = None
    thinking_token_budget: Annotated[int, Field(ge=-1, le=_MAX_INT32)] | None = Field(
        None, description="-1 sets no limit."
    )
    timeout: Annotated[float, Field(gt=0, le=MAX_TIMEOUT)] | None = Field(
        None, description="Seconds after which the answer ends as it is, with finish_reason abort."
    )
    length_penalty: Ignored = None
    early_stopping: Ignored = None
    spaces_between_special_tokens: Ignored = None

    use_beam_search: Refused = None

    def drawn(self) -> dict[str, Any]:
        """The fields that are given, by the names of `SamplingParams`."""
        return {name: value for name in _SAME if (value := getattr(self, name)) is not None}


# Fields that `SamplingParams` has under the same name.
_SAME = [each.name for each in fields(SamplingParams) if each.name in DrawFields.model_fields]


class RequestFields(DrawFields, ClientFields):
    """The fields that all requests for text share."""

    model: str | None = Field(None, description="A served name; left out, the one there is.")
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    priority: Annotated[int, Field(ge=-_INT64, lt=_INT64)] | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    request_id: Annotated[str, Field(max_length=1024)] | None = Field(
        None, description="Returned as the header X-Request-Id; nothing is looked up by it."
    )

    def check_together(self) -> None:
        """Refuse fields that contradict each other by an ApiError 400 that names one."""
        if self.stream_options is not None and not self.stream:
            raise invalid("stream_options goes with stream: true", "stream_options")


class SamplingFields(RequestFields, StructuredFields):
    """The fields that completions and chat share."""

    n: Annotated[int, Field(ge=1, le=MAX_N)] | None = None
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, le=_MAX_INT32)] | None = None
    prompt_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    prompt_logprob_start: Annotated[int, Field(ge=0, le=_MAX_INT32)] | None = Field(
        None, description="Index of the first prompt token that prompt_logprobs are given of."
    )
    forced_token_ids: Annotated[list[TokenId], Field(fail_fast=True)] | None = Field(
        None, description="Tokens that the answer begins with, in place of drawn ones."
    )
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None

    metadata: Ignored = None

    def check_together(self) -> None:
        """Refuse fields that contradict each other, as `RequestFields`."""
        super().check_together()
        if self.stream and self.prompt_logprobs is not None:
            raise invalid("prompt_logprobs is not streamed; leave out stream", "prompt_logprobs")

    def sampling_params(self, defaults: SamplingParams, **more: Any) -> SamplingParams:
        """The engine's sampling parameters; `more` are fields that the routes name differently.

        Raises:
            TypeError, ValueError: as `SamplingParams`.
            ApiError: 400; a field about grammars is wrong.
        """
        more["structured_outputs"] = self.grammar()
        for name in ("n", "truncate_prompt_tokens", "prompt_logprob_start", "forced_token_ids"):
            if (value := getattr(self, name)) is not None:
                more[name] = value
        return defaults.clone(**(self.drawn() | more))
