"""The route `POST /v1/chat/completions`: answers a conversation."""

from collections.abc import AsyncGenerator

from fastapi import APIRouter
from msgspec import Raw
from starlette.requests import Request
from starlette.responses import Response

from jaxinfer.outputs import RequestOutput
from jaxinfer.sampling_params import RequestOutputKind, SamplingParams
from jaxinfer.server.openai.answering.chunks import Chunks
from jaxinfer.server.openai.answering.conversation import conversation_job
from jaxinfer.server.openai.answering.head import head
from jaxinfer.server.openai.answering.json_answer import id_header, json_answer
from jaxinfer.server.openai.answering.plan import plan_answer
from jaxinfer.server.openai.answering.thinking import wish_of_effort
from jaxinfer.server.openai.answering.usage import UsageCount
from jaxinfer.server.openai.errors import client_errors
from jaxinfer.server.openai.front import Front, Outputs, finals, front_of
from jaxinfer.server.openai.logprobs import answer_size, prompt_logprobs
from jaxinfer.server.openai.merging import BEGIN_SECONDS, begun
from jaxinfer.server.openai.protocol.chat import ChatAnswer, ChatBody
from jaxinfer.server.openai.route import ApiRoute
from jaxinfer.server.openai.routes.chat_choices import ChatChoices
from jaxinfer.server.openai.sse import DONE, EventStream, encode

router = APIRouter(route_class=ApiRoute)


@router.post(
    "/v1/chat/completions",
    response_model=None,
    responses={200: {"model": ChatAnswer, "content": {"text/event-stream": {}}}},
)
async def chat(body: ChatBody, request: Request) -> Response:
    """Answer a conversation."""
    front = front_of(request)
    front.check_model(body.model, adapts=True)
    body.check_together()
    plan = plan_answer(front, body.function_tools, body.tool_choice, body.parallel_tool_calls)
    kind = "chat.completion.chunk" if body.stream else "chat.completion"
    begin = head(kind, "chatcmpl", front, front.adapter_of(body.model))
    params = _params(body, front)
    job = await conversation_job(
        body,
        [message.for_template() for message in body.messages],
        params,
        plan,
        begin["id"],
        front,
        field="messages",
        thinking=wish_of_effort(body.reasoning_effort),
        limit=front.prompts.reader.prompt_limit(params),
        final_message=body.messages[-1].text if body.continue_final_message else None,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
    )
    count = UsageCount(has_reasoning=plan.reasoning_parser is not None)
    choices = ChatChoices(body, front.engine.tokenizer)
    outputs = await front.start([job])
    if body.stream:
        outputs = await begun(outputs, BEGIN_SECONDS)
        return EventStream(
            _events(body, outputs, choices, count, Chunks(begin, body.stream_options)),
            outputs,
            keep_alive_seconds=front.settings.keep_alive_seconds,
            headers=id_header(body.request_id),
        )
    (output,) = await finals(outputs)

    def answer() -> Response:
        return json_answer({**begin, **_answer(body, output, choices, count)}, body.request_id)

    return await front.write(answer, answer_size(output))


def _params(body: ChatBody, front: Front) -> SamplingParams:
    with client_errors(ChatBody.model_fields):
        return body.sampling_params(
            front.engine.get_default_sampling_params(),
            max_tokens=body.most_tokens,
            logprobs=(body.top_logprobs or 0) if body.logprobs else None,
            prompt_logprobs=body.prompt_logprobs,
            output_kind=RequestOutputKind.DELTA if body.stream else RequestOutputKind.FINAL_ONLY,
        )


def _answer(
    body: ChatBody, output: RequestOutput, choices: ChatChoices, count: UsageCount
) -> dict[str, object]:
    count.add(0, output)
    answer: dict[str, object] = {
        "service_tier": None,
        "choices": [Raw(encode(choices.whole(each))) for each in output.outputs],
        "usage": count.usage(),
    }
    scores = output.prompt_logprobs if body.prompt_logprobs is not None else None
    answer["prompt_logprobs"] = None if scores is None else prompt_logprobs(scores)
    answer["prompt_token_ids"] = output.prompt_token_ids if body.return_token_ids else None
    return answer


async def _events(
    body: ChatBody, outputs: Outputs, choices: ChatChoices, count: UsageCount, chunks: Chunks
) -> AsyncGenerator[bytes]:
    shows_prompt = bool(body.return_token_ids)
    async for index, output in outputs:
        count.add(index, output)
        usage = count.usage() if chunks.each_has_usage else None
        events: list[bytes] = []
        for completion in output.outputs:
            for part in choices.stream(completion):
                more = {"prompt_token_ids": output.prompt_token_ids} if shows_prompt else {}
                shows_prompt = False
                events.append(chunks.event(part, usage, **more))
        yield b"".join(events)  # one write for all outputs that came at once
    if chunks.ends_with_usage:
        yield chunks.event(None, count.usage())
    yield DONE
