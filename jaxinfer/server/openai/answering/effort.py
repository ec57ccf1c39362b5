"""Reasoning effort, as OpenAI's clients ask for it: thinking switched off, or a budget for it."""

from collections.abc import Mapping
from typing import Any

from jaxinfer.sampling_params import SamplingParams
from jaxinfer.server.openai.front import Front
from jaxinfer.server.openai.protocol.sampling import Effort
from jaxinfer.serving.parsers.reasoning import ReasoningState

EFFORT_TOKENS: Mapping[Effort, int | None] = {
    "none": 0,
    "minimal": 512,
    "low": 1024,
    "medium": 8192,
    "high": 24576,
    "xhigh": None,
    "max": None,
}
"""Most tokens of thinking for each effort; None for any number."""


def with_thinking(
    kwargs: Mapping[str, Any] | None, effort: Effort | None, front: Front
) -> Mapping[str, Any]:
    """Names for the chat template, which switches thinking on or off as the effort says.

    Args:
        kwargs: of the request; they win.
        effort: of the request.
        front: says which names requests may set.
    """
    given = dict(kwargs or {})
    if effort is None or "enable_thinking" not in front.settings.template_kwargs:
        return given
    return {"enable_thinking": effort != "none"} | given


def with_budget(
    params: SamplingParams, effort: Effort | None, state: ReasoningState, front: Front
) -> SamplingParams:
    """The parameters with the effort's budget, where the model may think and has none yet.

    Args:
        params: of the request; a budget of its own wins.
        effort: of the request.
        state: in which the prompt ends.
        front: says whether the model thinks, and how long its answers can be.
    """
    budget = None if effort is None else EFFORT_TOKENS[effort]
    if budget is None or budget >= front.engine.max_model_len:
        return params
    if not front.thinks or state == "over" or params.thinking_token_budget is not None:
        return params
    return params.clone(thinking_token_budget=budget)
