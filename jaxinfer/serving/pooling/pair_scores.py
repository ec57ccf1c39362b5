"""Scores of pairs of texts: by a reranker's answer, or by the vectors of an embedding model."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxinfer.model.score_head import ScoreHead
from jaxinfer.outputs import RequestOutput
from jaxinfer.reranking import PairScore
from jaxinfer.serving.pooling.embedding import embedding_output
from jaxinfer.serving.pooling.reranking import named_texts, relevance_task
from jaxinfer.serving.pooling.task import HeadRows, PoolingTask
from jaxinfer.serving.requests.prompts import PromptParts, PromptReader


def pair_task(
    first: Any,
    second: Any,
    reader: PromptReader,
    *,
    by_vectors: bool,
    classifier: ScoreHead | None,
    instruction: str | None = None,
    names: tuple[str, str] = ("queries", "documents"),
) -> PoolingTask[list[PairScore]]:
    """The task of scoring pairs of texts.

    Args:
        first: a text, for each of `second`; or as many as these.
        second: a text or a list of texts.
        reader: checks and tokenizes them.
        by_vectors: whether scores are cosines of vectors, not a reranker's.
        classifier: the model's classifying head, which scores in place of vectors; or None.
        instruction: what makes a document relevant, for a reranker.
        names: of both, for errors.

    Raises:
        TypeError: something is no text; names it.
        ValueError: the numbers of texts differ, an embedding model gets an instruction, a text
            can't be run, or the head has several classes.
    """
    firsts, seconds = (
        {name: given} if isinstance(given, str) else named_texts(name, given)
        for name, given in zip(names, (first, second), strict=True)
    )
    if len(firsts) not in (1, len(seconds)):
        raise ValueError(
            f"{names[0]} has {len(firsts)} texts and {names[1]} {len(seconds)}; give one of the "
            "first for all of the second, or as many"
        )
    pairs = list(zip([*firsts] * (len(seconds) if len(firsts) == 1 else 1), seconds, strict=True))
    if classifier is not None or not by_vectors:
        return relevance_task(firsts, seconds, pairs, instruction, reader, classifier)
    if instruction is not None:
        raise ValueError(
            "instruction is for rerankers, and this model's files are an embedding model's; write "
            "it in front of the texts"
        )
    return _cosine_task({**firsts, **seconds}, pairs, reader)


def _cosine_task(
    texts: dict[str, Any], pairs: Sequence[tuple[str, str]], reader: PromptReader
) -> PoolingTask[list[PairScore]]:
    for name, text in texts.items():
        if not isinstance(text, str):
            raise TypeError(f"{name} must be a string, got {type(text).__name__}")
    parts = [PromptParts(name, text, None, None) for name, text in texts.items()]
    prompts = reader.read_parts(parts, [None] * len(parts), num_outputs=0)

    def answer(outputs: Sequence[RequestOutput], _: HeadRows) -> list[PairScore]:
        vectors = {
            name: embedding_output(output, normalize=True)
            for name, output in zip(texts, outputs, strict=True)
        }
        return [
            PairScore(
                float(np.dot(vectors[one].embedding, vectors[other].embedding)),
                len(vectors[one].token_ids) + len(vectors[other].token_ids),
            )
            for one, other in pairs
        ]

    return PoolingTask(prompts, (), answer)
