"""`LLM.judge` for asyncio tasks, of an engine in this process or another."""

from collections.abc import Callable, Sequence
from typing import Any

from jaxinfer.decisions import Decision
from jaxinfer.model.score_head import ScoreHead
from jaxinfer.reranking import PairScore, RankedDocument
from jaxinfer.serving.pooling.async_calls import ReadHead, StreamRequest, run_task_async
from jaxinfer.serving.pooling.classification import classify_task
from jaxinfer.serving.pooling.decisions import decision_task
from jaxinfer.serving.pooling.pair_scores import pair_task
from jaxinfer.serving.pooling.reranking import rerank_task
from jaxinfer.serving.pooling.task import PoolingTask
from jaxinfer.serving.requests.prompts import PromptReader


class AsyncJudge:
    """Chooses between labels, ranks documents and scores pairs of texts: see `LLM.judge`.

    Cancelling a call's task aborts its requests. Errors are those of `LLM.judge`, and the engine's
    where it can't take requests.

    Args:
        reader: checks and tokenizes texts.
        makes_vectors: whether the model's files are an embedding model's.
        stream: runs a request.
        read_head: of the same engine.
        classifier: the model's classifying head; None of a language model.

    Attributes:
        makes_vectors: as given; raises ModelLoadError if the files are damaged.
        read_head: as given.
        classifier: as given.
    """

    def __init__(
        self,
        reader: PromptReader,
        makes_vectors: Callable[[], bool],
        stream: StreamRequest,
        read_head: ReadHead,
        classifier: ScoreHead | None = None,
    ) -> None:
        self._reader = reader
        self.makes_vectors = makes_vectors
        self._stream = stream
        self.read_head = read_head
        self.classifier = classifier

    async def decide(self, prompts: Any, labels: Sequence[str]) -> list[Decision]:
        """Probabilities of labels after prompts: see `Judge.decide`."""
        read = self._reader.read(prompts, num_outputs=0)
        return await self.run(decision_task(read, labels, self._reader, self.classifier))

    async def classify(self, prompts: Any, labels: Sequence[str] | None = None) -> list[Decision]:
        """Classes of prompts, by a model's classifying head: see `Judge.classify`."""
        read = self._reader.read(prompts, num_outputs=0)
        return await self.run(classify_task(read, labels, self._reader, self.classifier))

    async def rerank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        instruction: str | None = None,
        top_n: int | None = None,
    ) -> list[RankedDocument]:
        """Documents by their relevance to a query: see `Judge.rerank`."""
        task = rerank_task(query, documents, instruction, top_n, self._reader, self.classifier)
        return await self.run(task)

    async def score_pairs(
        self,
        queries: str | Sequence[str],
        documents: str | Sequence[str],
        *,
        instruction: str | None = None,
    ) -> list[PairScore]:
        """How relevant documents are to queries: see `Judge.score_pairs`."""
        task = pair_task(
            queries,
            documents,
            self._reader,
            by_vectors=self.makes_vectors(),
            classifier=self.classifier,
            instruction=instruction,
        )
        return await self.run(task)

    async def run[T](self, task: PoolingTask[T]) -> T:
        """The answer of a task: see `run_task_async`."""
        return await run_task_async(task, stream=self._stream, read_head=self.read_head)
