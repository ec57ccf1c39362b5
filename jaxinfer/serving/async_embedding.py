"""Vectors of many texts for one task, which may be cancelled."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Sequence

from jaxinfer.outputs import EmbeddingOutput, RequestOutput
from jaxinfer.serving.embedding import embedding_output
from jaxinfer.serving.requests.new_request import NewRequest


async def embed_all(
    requests: Sequence[NewRequest],
    stream: Callable[[NewRequest], AsyncGenerator[RequestOutput]],
    *,
    normalize: bool,
    dimensions: int | None,
) -> list[EmbeddingOutput]:
    """Run requests that are `pooled`; all end when this task is cancelled, or when one fails.

    Args:
        requests: of `embedding_requests`.
        stream: runs a request, and aborts it when its iteration is left.
        normalize: as of `embedding_output`.
        dimensions: as of `embedding_output`.

    Raises:
        StepError: a request failed.
        Exception: the engine refuses one, or has ended.
    """

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
