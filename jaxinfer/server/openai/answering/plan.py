"""The plan for reading a request's answer: its parsers, its tool calls, and its grammar, if any."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jaxinfer.sampling_params import SamplingParams
from jaxinfer.server.openai.errors import client_errors, invalid
from jaxinfer.server.openai.front import Front
from jaxinfer.server.openai.protocol.tools import FunctionTool, ResponsesToolChoice, ToolChoice
from jaxinfer.serving.parsers.answer_format import AnswerFormat
from jaxinfer.serving.parsers.grammar import TAGS, tool_grammar
from jaxinfer.serving.parsers.reasoning import ReasoningState


@dataclass(frozen=True, kw_only=True)
class AnswerPlan:
    """The plan for reading an answer, made before the request runs: a mistake is refused at once.

    Attributes:
        tool_parser: name of the parser that reads calls; None leaves them in the content.
        reasoning_parser: name of the parser that reads reasoning; None leaves it in the content.
        parallel: more than one call is allowed.
        forced: "required", "auto" if strict tools constrain optional calls, or a function's name:
            calls need a grammar. None if they need none.
        tag_tokens: tags that the model has as tokens of their own.
        thinks: reasoning is read, and `<think>` and `</think>` are tokens of the model: a grammar
            can begin after them.
    """

    tools: Sequence[Mapping[str, Any]] = ()
    tool_parser: str | None = None
    reasoning_parser: str | None = None
    parallel: bool = True
    forced: str | None = None
    strict: Sequence[str] = ()
    tag_tokens: Sequence[str] = ()
    thinks: bool = False

    def has_grammar_of_calls(self, *, beside: bool) -> bool:
        """True if the answer's grammar is of calls alone.

        Args:
            beside: the request has a grammar of its own, which an answer without calls follows.
        """
        return self.forced is not None and not (beside and self.forced == "auto")

    def format(self, state: ReasoningState) -> AnswerFormat | None:
        """The reader of an answer to a prompt that ends in this state; None if it is content."""
        if self.reasoning_parser is None and self.tool_parser is None:
            return None
        return AnswerFormat(
            reasoning=self.reasoning_parser,
            tools=self.tool_parser,
            schemas=self.tools if self.tool_parser else (),
            parallel=self.parallel,
            stage=state,
            tags_are_tokens=self.thinks,
        )


def plan_answer(
    front: Front,
    tools: Sequence[FunctionTool],
    choice: ToolChoice | ResponsesToolChoice | None,
    parallel: bool | None = None,
) -> AnswerPlan:
    """Decide how an answer is read.

    Raises:
        ApiError: 400: the server has no tool parser, or does not let the model choose.
    """
    written = [tool.for_template() for tool in tools]
    if not tools or choice == "none":
        return AnswerPlan(
            tools=written, reasoning_parser=front.reasoning_parser, thinks=front.thinks
        )
    if front.tool_parser is None:
        raise invalid(
            "tools: no parser for this model's calls; write tool_choice 'none', or start the "
            "server with --tool-call-parser",
            "tools",
        )
    if choice in (None, "auto") and not front.settings.enable_auto_tool_choice:
        raise invalid(
            "tool_choice 'auto' is off here; write 'none', or start the server with "
            "--enable-auto-tool-choice",
            "tool_choice",
        )
    tokenizer = front.engine.tokenizer
    strict = [tool.name for tool in tools if tool.strict]
    forced = None
    if choice is not None and not isinstance(choice, str):
        forced = choice.name
    elif choice == "required" or strict:
        forced = choice or "auto"
    return AnswerPlan(
        tools=written,
        tool_parser=front.tool_parser,
        reasoning_parser=front.reasoning_parser,
        thinks=front.thinks,
        parallel=parallel is not False,
        forced=forced,
        strict=strict,
        tag_tokens=[tag for tag in TAGS if tokenizer and tokenizer.token_to_id(tag) is not None],
    )


def guided(
    params: SamplingParams,
    plan: AnswerPlan,
    state: ReasoningState,
    *,
    begin_is_given: bool = False,
) -> SamplingParams:
    """The parameters of a request with the grammar that its plan asks for.

    Calls that must come have a grammar of their own, and no content. Any other grammar is for the
    content: it begins after the thinking, and where calls may come, they are its alternative.

    Args:
        begin_is_given: the request itself says where its grammar begins.

    Raises:
        ApiError: 400: one of its parameters can't be combined with a grammar, or the schema of a
            tool can't be enforced.
    """
    own = params.structured_outputs
    if plan.tool_parser is None or (plan.forced is None and own is None):
        return params if begin_is_given else _after_thinking(params, plan, state)
    is_alone = plan.has_grammar_of_calls(beside=own is not None)
    with client_errors(("tools",)):
        calls = tool_grammar(
            plan.tools,
            plan.forced or "auto",
            parser=plan.tool_parser,
            reasoning=state if plan.reasoning_parser and is_alone else "over",
            parallel=plan.parallel,
            strict=plan.strict,
            tokens=plan.tag_tokens,
            alone=not is_alone,
        )
    if own is not None and not is_alone:
        if own.alternative is not None:
            raise invalid(
                "structured_outputs.alternative: with tools, calls are the alternative; send "
                "tool_choice 'none', or leave it out",
                "structured_outputs",
            )
        both = dataclasses.replace(own, alternative=calls["grammar"])
        params = params.clone(structured_outputs=both)
        return params if begin_is_given else _after_thinking(params, plan, state)
    with client_errors(("min_tokens", "forced_token_ids")):
        return params.clone(structured_outputs=calls)


def _after_thinking(
    params: SamplingParams, plan: AnswerPlan, state: ReasoningState
) -> SamplingParams:
    """The parameters with a grammar that lets the model think first, where it can."""
    grammar = params.structured_outputs
    if grammar is None or not plan.thinks or state == "over":
        return params
    return params.clone(structured_outputs=dataclasses.replace(grammar, after_thinking=True))
