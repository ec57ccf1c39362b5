"""Runs the prompts of requests that are read and not continued, and counts their tokens."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from jaxinfer.outputs import RequestOutput
from jaxinfer.sampling_params import RequestOutputKind, SamplingParams
from jaxinfer.server.openai.errors import client_errors
from jaxinfer.server.openai.front import Front, Job, finals
from jaxinfer.server.openai.protocol.pooling import PoolingBody, PoolingUsage
from jaxinfer.server.openai.protocol.prompts import TextOrTokens
from jaxinfer.serving.pooling.async_calls import head_rows_of
from jaxinfer.serving.pooling.task import PoolingTask
from jaxinfer.serving.requests.new_request import Prompt

_PARAMS = SamplingParams(output_kind=RequestOutputKind.FINAL_ONLY)


async def read_inputs(
    inputs: Sequence[TextOrTokens],
    body: PoolingBody,
    front: Front,
    *,
    name: str,
    add_special_tokens: bool | None,
) -> list[Prompt]:
    """A request's own prompts, which may fill the model's length; errors as of `Prompts.read`."""
    return await front.prompts.read(
        inputs,
        name=name,
        num_outputs=0,
        add_special_tokens=True if add_special_tokens is None else add_special_tokens,
        cache_salt=body.cache_salt,
    )


async def pooled(
    prompts: Sequence[Prompt], body: PoolingBody, label: str, front: Front
) -> list[RequestOutput]:
    """The last output of each prompt, with its vector; they end with the client.

    Raises:
        ApiError: the engine refuses one, or it ended in an error.
    """
    jobs = [
        Job(
            prompt=prompt,
            params=_PARAMS,
            label=f"{label}-{i}",
            priority=body.priority or 0,
            pooled=True,
        )
        for i, prompt in enumerate(prompts)
    ]
    return await finals(await front.start(jobs)) if jobs else []


async def read_task[T](
    make: Callable[[], PoolingTask[T]],
    body: PoolingBody,
    size: int,
    front: Front,
    rename: dict[str, str],
) -> PoolingTask[T]:
    """The task of a request, made in a thread that tokenizes its texts.

    Args:
        make: makes it; its TypeError and ValueError are the client's.
        rename: the request's own names of what `make` calls otherwise; the first is that of a
            request that is too large.

    Raises:
        ApiError: 400: something can't be run.
        QueueFullError: too many wait to be tokenized.
    """
    with client_errors(type(body).model_fields, lambda name: rename.get(name, name)):
        task = await front.prompts.on_thread(make, size, next(iter(rename.values())))
    if body.cache_salt is None:
        return task
    return replace(task, prompts=[replace(p, cache_salt=body.cache_salt) for p in task.prompts])


async def answer_task[T](
    task: PoolingTask[T], body: PoolingBody, label: str, front: Front
) -> tuple[T, PoolingUsage]:
    """Run a task for a request.

    Raises:
        ApiError: as of `pooled`.
        StepError: the weights were swapped behind a prompt.
    """
    outputs = await pooled(task.prompts, body, label, front)
    with client_errors(()):
        head = await head_rows_of(task, front.engine.judge.read_head)
    return task.answer(outputs, head), usage_of(outputs)


def usage_of(outputs: Sequence[RequestOutput]) -> PoolingUsage:
    """The tokens of prompts."""
    tokens = sum(len(output.prompt_token_ids) for output in outputs)
    cached = sum(output.num_cached_tokens for output in outputs)
    return {
        "prompt_tokens": tokens,
        "total_tokens": tokens,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
