"""The routes `/tokenize`, `/detokenize` and, if the operator allows it, `/tokenizer_info`."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from jaxinfer.server.openai.answering.json_answer import json_answer
from jaxinfer.server.openai.errors import invalid
from jaxinfer.server.openai.front import Front, front_of
from jaxinfer.server.openai.protocol.answers import (
    DetokenizeAnswer,
    TokenizeAnswer,
    TokenizerInfo,
)
from jaxinfer.server.openai.protocol.tokenization import DetokenizeBody, TokenizeBody
from jaxinfer.server.openai.route import ApiRoute

router = APIRouter(route_class=ApiRoute)
info_router = APIRouter(route_class=ApiRoute)


@router.post("/tokenize", response_model=None, responses={200: {"model": TokenizeAnswer}})
async def tokenize(body: TokenizeBody, request: Request) -> Response:
    """Token ids of a text or a conversation, also of one that is longer than the model takes."""
    front = front_of(request)
    front.check_model(body.model, adapts=True)
    body.check_together()
    tokenizer = front.prompts.tokenizer
    text, special = await _text(body, front)
    if body.add_special_tokens is not None:
        special = body.add_special_tokens

    def encode() -> tuple[list[int], list[str] | None]:
        token_ids = tokenizer.encode(text, add_special_tokens=special)
        has_names = body.return_token_strs
        return token_ids, tokenizer.convert_ids_to_tokens(token_ids) if has_names else None

    field = "prompt" if body.messages is None else "messages"
    token_ids, names = await front.prompts.on_thread(encode, len(text), field)
    answer: TokenizeAnswer = {
        "tokens": token_ids,
        "count": len(token_ids),
        "max_model_len": front.engine.max_model_len,
        "token_strs": names,
    }
    return json_answer(answer)


@router.post("/detokenize", response_model=None, responses={200: {"model": DetokenizeAnswer}})
async def detokenize(body: DetokenizeBody, request: Request) -> Response:
    """The text of token ids, special ones included."""
    front = front_of(request)
    front.check_model(body.model, adapts=True)
    tokenizer = front.prompts.tokenizer
    limit = front.engine.model_config.vocab_size
    if (largest := max(body.tokens, default=0)) >= limit:
        raise invalid(
            f"tokens has id {largest}, but the model's vocabulary ends at {limit - 1}", "tokens"
        )
    text = await front.prompts.on_thread(
        lambda: tokenizer.decode(body.tokens, skip_special_tokens=False), len(body.tokens), "tokens"
    )
    return json_answer({"prompt": text})


@info_router.get("/tokenizer_info", response_model=None, responses={200: {"model": TokenizerInfo}})
async def tokenizer_info(request: Request) -> Response:
    """The chat template and special tokens, so that clients can format prompts themselves."""
    front = front_of(request)
    tokenizer = front.prompts.tokenizer
    special = tokenizer.special_tokens
    answer: TokenizerInfo = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": tokenizer.chat_template,
        "vocab_size": len(tokenizer),
        "model_max_length": front.engine.max_model_len,
        "bos_token": special.get("bos_token"),
        "eos_token": special.get("eos_token"),
        "pad_token": special.get("pad_token"),
        "unk_token": special.get("unk_token"),
    }
    return json_answer(answer)


async def _text(body: TokenizeBody, front: Front) -> tuple[str, bool]:
    """The text, and whether the tokenizer adds special tokens to it by default."""
    if body.messages is None:
        return body.prompt or "", True
    text = await front.prompts.render(
        [message.for_template() for message in body.messages],
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        chat_template_kwargs=body.chat_template_kwargs,
        tools=[tool.function.for_template() for tool in body.tools or ()],
    )
    return text, False
