"""Turns a conversation into a job for the engine: prompt, thinking, and grammar, if any."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from jaxinfer.sampling_params import SamplingParams
from jaxinfer.server.openai.answering.plan import AnswerPlan, guided
from jaxinfer.server.openai.answering.thinking import ThinkingWish, with_budget
from jaxinfer.server.openai.front import Front, Job
from jaxinfer.serving.parsers.reasoning import reasoning_state


class ConversationBody(Protocol):
    """The fields that every request for the next turn of a conversation has."""

    @property
    def model(self) -> str | None:
        """A served name, or an adapter's."""
        ...

    @property
    def chat_template_kwargs(self) -> dict[str, Any] | None:
        """Names for the chat template."""
        ...

    @property
    def structured_outputs(self) -> dict[str, Any] | None:
        """A grammar, in vLLM's form."""
        ...

    @property
    def cache_salt(self) -> str | None:
        """Blocks are shared only with prompts of the same salt."""
        ...

    @property
    def priority(self) -> int | None:
        """Lower ones run earlier."""
        ...

    @property
    def grammar_field(self) -> str | None:
        """The field that gives the answer a grammar."""
        ...


async def conversation_job(
    body: ConversationBody,
    messages: Sequence[Mapping[str, Any]],
    params: SamplingParams,
    plan: AnswerPlan,
    label: str,
    front: Front,
    *,
    field: str,
    thinking: ThinkingWish,
    limit: int | None,
    final_message: str | None = None,
    **options: Any,
) -> Job:
    """The engine's job for the next turn of a conversation.

    Args:
        field: the request's field that holds the prompt, named in errors.
        thinking: the request's own `enable_thinking` and budget take precedence.
        limit: keep only this many of the prompt's last tokens; None keeps all.
        final_message: the text of a last message that the answer continues.
        options: further arguments of `Prompts.render`.

    Raises:
        ApiError: 400: the template refuses, the prompt is too long, or a schema can't be enforced.
    """
    text = await conversation_text(
        messages,
        front,
        thinking,
        body.chat_template_kwargs,
        name=field,
        tools=plan.tools,
        **options,
    )
    state = reasoning_state(text, final_message)
    begin_is_given = "after_thinking" in (body.structured_outputs or {})
    has_calls = plan.has_grammar_of_calls(beside=params.structured_outputs is not None)
    params = with_budget(params, thinking, state, front)
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
        adapter=front.adapter_of(body.model),
    )


async def conversation_text(
    messages: Sequence[Mapping[str, Any]],
    front: Front,
    thinking: ThinkingWish,
    template_kwargs: Mapping[str, Any] | None,
    **options: Any,
) -> str:
    """The prompt of a conversation's next turn; `template_kwargs` win over `thinking`.

    Raises:
        ApiError: 400: the template refuses, or the conversation is too long.
    """
    names = dict(template_kwargs or {})
    if thinking.is_on is not None and "enable_thinking" in front.settings.template_kwargs:
        names = {"enable_thinking": thinking.is_on} | names
    return await front.prompts.render(messages, chat_template_kwargs=names, **options)
