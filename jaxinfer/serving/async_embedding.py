"""Vectors of many texts for one task, which may be cancelled."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from typing import Any

from jaxinfer.outputs import EmbeddingOutput, RequestOutput
from jaxinfer.serving.embedding import embedding_output, embedding_requests
from jaxinfer.serving.embedding_model import EmbeddingModel
from jaxinfer.serving.requests.new_request import NewRequest
from jaxinfer.serving.requests.prompts import PromptReader


async def embed_all(
    model: EmbeddingModel,
    prompts: Any,
    reader: PromptReader,
    stream: Callable[[NewRequest], AsyncGenerator[RequestOutput]],
    *,
    dimensions: int | None,
    prompt_name: str | None,
    normalize: bool,
) -> list[EmbeddingOutput]:
    """Run prompts' requests; all end when this task is cancelled, or when one fails.

    Args:
        model: as of `embedding_requests`; also `prompts`, `reader` and `prompt_name`.
        stream: runs a request, and aborts it when its iteration is left.
        dimensions: as of `embedding_output`; also `normalize`.

    Raises:
        TypeError, ValueError: something can't be run; names it.
        StepError: a request failed.
        Exception: the engine refuses one, or has ended.
    """
    requests = embedding_requests(
        model, prompts, reader, dimensions=dimensions, prompt_name=prompt_name
    )

    async def embed(request: NewRequest) -> EmbeddingOutput:
        async with contextlib.aclosing(stream(request)) as outputs:
            last = [output async for output in outputs][-1]
        return embedding_output(last, normalize=normalize, dimensions=dimensions)

    tasks = [asyncio.ensure_future(embed(request)) for request in requests]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
