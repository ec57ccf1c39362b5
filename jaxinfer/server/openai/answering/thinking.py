"""A request's wish about thinking: the template's switch, and a budget of tokens."""

from collections.abc import Mapping
from dataclasses import dataclass

from jaxinfer.sampling_params import SamplingParams
from jaxinfer.server.openai.errors import client_errors
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


@dataclass(frozen=True)
class ThinkingWish:
    """A request's `enable_thinking` and most tokens of thinking; None leaves either as it is."""

    is_on: bool | None = None
    budget: int | None = None


def wish_of_effort(effort: Effort | None) -> ThinkingWish:
    """The wish that an effort stands for."""
    if effort is None:
        return ThinkingWish()
    return ThinkingWish(effort != "none", EFFORT_TOKENS[effort])


def with_budget(
    params: SamplingParams, wish: ThinkingWish, state: ReasoningState, front: Front
) -> SamplingParams:
    """The parameters with the wish's budget, where the model may think and has none yet.

    Raises:
        ApiError: 400: another field can't be combined with a budget.
    """
    budget = wish.budget
    if budget is None or budget >= front.engine.max_model_len:
        return params
    if not front.thinks or state == "over" or params.thinking_token_budget is not None:
        return params
    with client_errors(("forced_token_ids",)):
        return params.clone(thinking_token_budget=budget)
