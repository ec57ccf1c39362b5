"""Vectors of texts, from prompts that run without sampling."""

import numpy as np

from jaxinfer.errors import StepError
from jaxinfer.outputs import EmbeddingOutput, RequestOutput


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
    if output.error is not None or output.embedding is None:
        raise StepError(f"embedding failed: {output.error}") from output.cause
    vector = np.asarray(output.embedding, np.float32)[:dimensions]
    norm = np.linalg.norm(vector)
    return EmbeddingOutput(output.prompt_token_ids, vector / norm if normalize and norm else vector)
