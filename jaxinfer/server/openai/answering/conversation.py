"""Turns a conversation into a job for the engine: prompt, thinking, and grammar, if any."""

from collections.abc import Mapping, Sequence
from typing import Any

from jaxinfer.sampling_params import SamplingParams
from jaxinfer.server.openai.answering.plan import AnswerPlan, guided
from jaxinfer.server.openai.front import Front, Job
from jaxinfer.server.openai.protocol.chat import ChatBody
from jaxinfer.server.openai.protocol.responses.body import ResponsesBody
from jaxinfer.server.openai.protocol.sampling import Effort
from jaxinfer.serving.parsers.reasoning import ReasoningState, reasoning_state

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


async def conversation_job(
    body: ChatBody | ResponsesBody,
    messages: Sequence[Mapping[str, Any]],
    params: SamplingParams,
    plan: AnswerPlan,
    label: str,
    front: Front,
    *,
    field: str,
    effort: Effort | None,
    limit: int | None,
    final_message: str | None = None,
    **options: Any,
) -> Job:
    """The engine's job for the next turn of a conversation.

    Args:
        body: the request.
        messages: the conversation, as chat templates expect it.
        params: the request's sampling parameters.
        plan: the plan for parsing the answer.
        label: the job's label.
        front: has the template and says whether the model thinks.
        field: the request's field that holds the prompt, named in errors.
        effort: amount of thinking; the request's own `enable_thinking` and budget take precedence.
        limit: keep only this many of the prompt's last tokens; None keeps all.
        final_message: the text of a last message that the answer continues.
        options: further arguments of `Prompts.render`.

    Raises:
        ApiError: 400: the template refuses, the prompt is too long, or a schema can't be enforced.
    """
    kwargs = dict(body.chat_template_kwargs or {})
    if effort is not None and "enable_thinking" in front.settings.template_kwargs:
        kwargs = {"enable_thinking": effort != "none"} | kwargs
    text = await front.prompts.render(
        messages, chat_template_kwargs=kwargs, tools=plan.tools, **options
    )
    state = reasoning_state(text, final_message)
    begin_is_given = "after_thinking" in (body.structured_outputs or {})
    has_calls = plan.has_grammar_of_calls(beside=params.structured_outputs is not None)
    params = with_budget(params, effort, state, front)
    params = guided(params, plan, state, begin_is_given=begin_is_given)
    (prompt,) = await front.prompts.read(
        [text],
        name=field,
        limit=limit,
        add_special_tokens=False,  # the template has written them already
        cache_salt=body.cache_salt,
    )
    return Job(
        prompt=prompt,
        params=params,
        label=label,
        priority=body.priority or 0,
        grammar_field="tools" if has_calls else body.grammar_field,
        answer=plan.format(state),
    )


def with_budget(
    params: SamplingParams, effort: Effort | None, state: ReasoningState, front: Front
) -> SamplingParams:
    """The parameters with the effort's budget, where the model may think and has none yet."""
    budget = None if effort is None else EFFORT_TOKENS[effort]
    if budget is None or budget >= front.engine.max_model_len:
        return params
    if not front.thinks or state == "over" or params.thinking_token_budget is not None:
        return params
    return params.clone(thinking_token_budget=budget)
