"""Vectors of texts, from prompts that run without sampling."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxinfer.outputs import EmbeddingOutput, RequestOutput
from jaxinfer.serving.pooling.embedding_model import EmbeddingModel
from jaxinfer.serving.pooling.task import HeadRows, PoolingTask, vector_of
from jaxinfer.serving.requests.prompts import PromptParts, PromptReader, split_prompts


def embedding_task(
    model: EmbeddingModel,
    prompts: Any,
    reader: PromptReader,
    *,
    dimensions: int | None,
    prompt_name: str | None,
    normalize: bool,
) -> PoolingTask[list[EmbeddingOutput]]:
    """The task of a call of `embed`.

    Args:
        model: that makes the vectors.
        prompts: as the caller gave them.
        reader: checks and tokenizes them.
        dimensions: asked for; None for all.
        prompt_name: of the prompt to put in front of each text; None for none.
        normalize: as of `embedding_output`.

    Raises:
        TypeError, ValueError: something can't be run; names it.
    """
    model.check_dimensions(dimensions)
    parts = split_prompts(prompts)
    if prompt_name is not None:
        prefix = model.prompt(prompt_name)
        parts = [_after(prefix, part) for part in parts]

    def answer(outputs: Sequence[RequestOutput], _: HeadRows) -> list[EmbeddingOutput]:
        return [
            embedding_output(each, normalize=normalize, dimensions=dimensions) for each in outputs
        ]

    return PoolingTask(reader.read_parts(parts, [None] * len(parts), num_outputs=0), (), answer)


def embedding_output(
    output: RequestOutput, *, normalize: bool, dimensions: int | None = None
) -> EmbeddingOutput:
    """The vector in a finished request that was `pooled`.

    Args:
        output: of the request.
        normalize: divide by the Euclidean norm, if that is not 0.
        dimensions: keep this many leading numbers, before that; None keeps all.

    Raises:
        StepError: the request failed.
    """
    vector = vector_of(output)[:dimensions]
    norm = np.linalg.norm(vector)
    return EmbeddingOutput(output.prompt_token_ids, vector / norm if normalize and norm else vector)


def _after(prefix: str, part: PromptParts) -> PromptParts:
    """A prompt's text behind another text."""
    if part.text is None or part.token_ids is not None:
        raise ValueError(
            f"{part.name} is token ids, and prompt_name goes in front of a text; send the text, or "
            "leave prompt_name out"
        )
    return dataclasses.replace(part, text=prefix + part.text)
