"""Choices of `/v1/chat/completions`, whole or in parts."""

from collections.abc import Iterator
from typing import Any

from jaxinfer.model.text.tokenizer import Tokenizer
from jaxinfer.outputs import CompletionOutput
from jaxinfer.serving.openai.logprobs import chat_logprobs
from jaxinfer.serving.openai.protocol.chat import ChatBody, ChatChoice, ChatLogprobs


def whole_choice(
    body: ChatBody, completion: CompletionOutput, tokenizer: Tokenizer | None
) -> ChatChoice:
    """A finished choice."""
    choice = ChatChoice(
        index=completion.index,
        message={"role": "assistant", "content": completion.text},
        logprobs=_logprobs(body, completion, tokenizer),
        finish_reason=completion.finish_reason,
        stop_reason=completion.stop_reason,
    )
    if body.return_token_ids:
        choice["token_ids"] = list(completion.token_ids)
    return choice


def opening_choice(index: int) -> dict[str, Any]:
    """What comes before a choice's first text."""
    return {
        "index": index,
        "delta": {"role": "assistant", "content": ""},
        "logprobs": None,
        "finish_reason": None,
    }


def stream_choices(
    body: ChatBody, completion: CompletionOutput, tokenizer: Tokenizer | None
) -> Iterator[dict[str, Any]]:
    """Parts for chunks: what is new, then the end by itself; nothing where nothing is new."""
    wants_tokens = body.logprobs or body.return_token_ids
    if completion.text or (wants_tokens and completion.token_ids):
        part: dict[str, Any] = {
            "index": completion.index,
            "delta": {"content": completion.text},
            "logprobs": _logprobs(body, completion, tokenizer),
            "finish_reason": None,
        }
        if body.return_token_ids:
            part["token_ids"] = list(completion.token_ids)
        yield part
    if completion.finish_reason is not None:
        yield {
            "index": completion.index,
            "delta": {},
            "logprobs": None,
            "finish_reason": completion.finish_reason,
            "stop_reason": completion.stop_reason,
        }


def _logprobs(
    body: ChatBody, completion: CompletionOutput, tokenizer: Tokenizer | None
) -> ChatLogprobs | None:
    if not body.logprobs:
        return None
    return chat_logprobs(
        completion.token_ids,
        completion.logprobs or [],
        body.top_logprobs or 0,
        tokenizer,
        as_ids=bool(body.return_tokens_as_token_ids),
    )
