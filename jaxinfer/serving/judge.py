"""Choices between labels, and documents by relevance: answers that need a prefill alone."""

from collections.abc import Callable, Sequence
from typing import Any

from jaxinfer.decisions import Decision
from jaxinfer.reranking import PairScore, RankedDocument
from jaxinfer.serving.handle import Handle
from jaxinfer.serving.pooling.blocking_calls import run_task
from jaxinfer.serving.pooling.classification import classify_task
from jaxinfer.serving.pooling.decisions import decision_task
from jaxinfer.serving.pooling.embedding_model import makes_vectors
from jaxinfer.serving.pooling.pair_scores import pair_task
from jaxinfer.serving.pooling.reranking import rerank_task
from jaxinfer.serving.pooling.task import PoolingTask


class Judge:
    """What `LLM.judge` is: it has a model judge prompts by the logits of a few tokens.

    Args:
        handle: of the engine.
    """

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    def decide(
        self, prompts: Any, labels: Sequence[str], *, use_tqdm: bool | Callable[..., Any] = False
    ) -> list[Decision]:
        """Probabilities of labels after prompts, from one prefill: nothing is sampled.

        They are the softmax of the logits of the labels' first tokens, before any logits
        processor, so that labels must begin with different ones. Prompts share cached prefixes.

        Args:
            prompts: as in `LLM.generate`. A chat model's are conversations in its template:
                `llm.get_tokenizer().apply_chat_template(messages)`.
            labels: two or more texts, each as it would go on from every prompt: with the space in
                front if the prompt ends without one.
            use_tqdm: as in `LLM.generate`.

        Returns:
            One decision for each prompt, in order.

        Raises:
            TypeError, ValueError: as in `LLM.generate`; labels are fewer than two, repeated, or of
                the same first token; or the engine has no tokenizer, runs on several processes, or
                has a classifier. Nothing has been run.
            StepError: the model's output for a prompt was not finite, or the weights were swapped
                behind it.
        """
        self._handle.check_open()
        reader = self._handle.loaded.reader
        read = reader.read(prompts, num_outputs=0)
        classifier = self._handle.loaded.classifier
        return self._run(decision_task(read, labels, reader, classifier), use_tqdm)

    def classify(
        self,
        prompts: Any,
        labels: Sequence[str] | None = None,
        *,
        use_tqdm: bool | Callable[..., Any] = False,
    ) -> list[Decision]:
        """Classes of prompts, by a model's classifying head; `decide`, of a language model.

        A head's logits are of the last token's final hidden state, as in transformers. Their
        probabilities are the softmax, or of a single class the sigmoid, unless the model's
        config.json asks for others as vLLM reads it (`problem_type`, or `activation_fn` of a cross
        encoder). `update_params` leaves the head as it is.

        Args:
            prompts: as in `decide`.
            labels: as in `decide`; None for a classifier, whose config.json names its classes.
            use_tqdm: as in `LLM.generate`.

        Returns:
            One decision for each prompt, in order.

        Raises:
            TypeError, ValueError: as in `decide`; or labels are given to a classifier, or not given
                to a language model.
            StepError: as in `decide`.
        """
        self._handle.check_open()
        loaded = self._handle.loaded
        read = loaded.reader.read(prompts, num_outputs=0)
        return self._run(classify_task(read, labels, loaded.reader, loaded.classifier), use_tqdm)

    def rerank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        instruction: str | None = None,
        top_n: int | None = None,
        use_tqdm: bool | Callable[..., Any] = False,
    ) -> list[RankedDocument]:
        """Documents by their relevance to a query, by a Qwen3-Reranker model.

        Its files may be the original ones, or those of a classifying head with one class.
        Other models with Qwen's chat template run, too, but were not trained to judge so. A
        document that does not fit `max_model_len` is cut at its end.

        Args:
            query: a text.
            documents: texts.
            instruction: what makes a document relevant; None is the one that the models' authors
                use for web searches.
            top_n: how many documents to return; None is all.
            use_tqdm: as in `LLM.generate`.

        Returns:
            Documents with their scores, the most relevant first.

        Raises:
            TypeError: something is no text, or `top_n` no integer.
            ValueError: query and instruction leave no room for a document, `top_n` is below 1, the
                tokenizer lacks the template's tokens or there is none, the engine runs on several
                processes, or its classifying head has several classes. Nothing has been run.
            StepError: as in `decide`.
        """
        self._handle.check_open()
        loaded = self._handle.loaded
        task = rerank_task(query, documents, instruction, top_n, loaded.reader, loaded.classifier)
        return self._run(task, use_tqdm)

    def score_pairs(
        self,
        queries: str | Sequence[str],
        documents: str | Sequence[str],
        *,
        instruction: str | None = None,
        use_tqdm: bool | Callable[..., Any] = False,
    ) -> list[PairScore]:
        """How relevant documents are to queries, or how similar two texts are.

        A model whose files are an embedding model's (a `modules.json` with a pooling) gives the
        cosine of the two vectors, any other model a Qwen3-Reranker's probability, as `rerank`.

        Args:
            queries: a text, for each document; or as many as there are documents.
            documents: a text, or several.
            instruction: as in `rerank`; not for embedding models.
            use_tqdm: as in `LLM.generate`.

        Returns:
            One score for each document, in order.

        Raises:
            TypeError, ValueError: as in `rerank`; or the numbers of texts differ.
            ModelLoadError: the model's `modules.json` is damaged.
            StepError: as in `decide`.
        """
        self._handle.check_open()
        loaded = self._handle.loaded
        task = pair_task(
            queries,
            documents,
            loaded.reader,
            by_vectors=makes_vectors(loaded.directory),
            classifier=loaded.classifier,
            instruction=instruction,
        )
        return self._run(task, use_tqdm)

    def _run[T](self, task: PoolingTask[T], use_tqdm: bool | Callable[..., Any]) -> T:
        return run_task(self._handle.driver, self._handle.head, task, use_tqdm=use_tqdm)
