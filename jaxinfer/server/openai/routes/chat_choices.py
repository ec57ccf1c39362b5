"""Writes the choices of `/v1/chat/completions`, whole or as parts of a stream."""

from collections.abc import Iterator
from typing import Any

from jaxinfer.model.text.tokenizer import Tokenizer
from jaxinfer.outputs import CallArguments, CallStart, CompletionOutput, Content, Piece, Reasoning
from jaxinfer.server.openai.answering.pieces import pieces_of
from jaxinfer.server.openai.logprobs import chat_logprobs
from jaxinfer.server.openai.protocol.chat import (
    ChatBody,
    ChatChoice,
    ChatLogprobs,
    ChatMessage,
)
from jaxinfer.serving.parsers.answer import ParsedAnswer, assemble


class ChatChoices:
    """Writes all choices of one request."""

    def __init__(self, body: ChatBody, tokenizer: Tokenizer | None) -> None:
        self._body = body
        self._tokenizer = tokenizer
        self._begun: set[int] = set()
        self._calling: set[int] = set()
        self._ended: set[int] = set()

    def whole(self, completion: CompletionOutput) -> ChatChoice:
        """A finished choice."""
        answer = assemble(pieces_of(completion))
        return ChatChoice(
            index=completion.index,
            message=self._message(answer),
            logprobs=self._logprobs(completion),
            finish_reason=_finish_reason(completion.finish_reason, bool(answer.tool_calls)),
            stop_reason=completion.stop_reason,
            token_ids=list(completion.token_ids) if self._body.return_token_ids else None,
        )

    def stream(self, completion: CompletionOutput) -> Iterator[dict[str, Any]]:
        """Yield parts for chunks: the role, the new pieces, then the end; nothing after it."""
        index = completion.index
        if index not in self._begun:
            self._begun.add(index)
            yield _part(index, {"role": "assistant", "content": ""})
        if index in self._ended:
            return
        pieces = pieces_of(completion)
        if any(isinstance(piece, CallStart) for piece in pieces):
            self._calling.add(index)
        deltas = [
            _delta(piece)
            for piece in pieces
            if self._shows_reasoning or not isinstance(piece, Reasoning)
        ]
        body = self._body
        if not deltas and (body.logprobs or body.return_token_ids) and completion.token_ids:
            deltas = [{"content": ""}]  # tokens whose text is held back
        for i, delta in enumerate(deltas):
            part = _part(index, delta)
            if i == 0:
                part["logprobs"] = self._logprobs(completion)
                if body.return_token_ids:
                    part["token_ids"] = list(completion.token_ids)
            yield part
        if completion.finish_reason is not None:
            self._ended.add(index)
            reason = _finish_reason(completion.finish_reason, index in self._calling)
            yield _part(index, {}, reason) | {"stop_reason": completion.stop_reason}

    @property
    def _shows_reasoning(self) -> bool:
        return self._body.include_reasoning is not False

    def _message(self, answer: ParsedAnswer) -> ChatMessage:
        says_nothing = not answer.content and bool(answer.tool_calls or answer.reasoning)
        reasoning = (answer.reasoning or None) if self._shows_reasoning else None
        return ChatMessage(
            role="assistant",
            content=None if says_nothing else answer.content,
            refusal=None,
            annotations=None,
            audio=None,
            function_call=None,
            tool_calls=[
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in answer.tool_calls
            ],
            reasoning=reasoning,
            reasoning_content=reasoning,
        )

    def _logprobs(self, completion: CompletionOutput) -> ChatLogprobs | None:
        body = self._body
        if not body.logprobs:
            return None
        return chat_logprobs(
            completion.token_ids,
            completion.logprobs or [],
            body.top_logprobs or 0,
            self._tokenizer,
            as_ids=bool(body.return_tokens_as_token_ids),
        )


def _part(index: int, delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": reason}


def _delta(piece: Piece) -> dict[str, Any]:
    match piece:
        case Reasoning(text):
            return {"reasoning": text, "reasoning_content": text}
        case Content(text):
            return {"content": text}
        case CallStart(index, name, call_id):
            function = {"name": name, "arguments": ""}
            call = {"index": index, "id": call_id, "type": "function", "function": function}
        case CallArguments(index, text):
            call = {"index": index, "function": {"arguments": text}}
    return {"tool_calls": [call]}


def _finish_reason(reason: str | None, has_calls: bool) -> str | None:
    return "tool_calls" if has_calls and reason == "stop" else reason
