"""What `LLM` answers by a prefill alone: vectors, log-probabilities, choices, relevance."""

from collections.abc import Callable, Sequence
from typing import Any, overload

from jaxinfer.decisions import Decision
from jaxinfer.model.adapters.lora_request import AdapterChoice
from jaxinfer.outputs import EmbeddingOutput, ScoreOutput
from jaxinfer.reranking import PairScore, RankedDocument
from jaxinfer.sampling_params import SamplingParams
from jaxinfer.serving.door import Door
from jaxinfer.serving.driver.blocking_calls import run_requests
from jaxinfer.serving.handle import Handle
from jaxinfer.serving.judge import Judge
from jaxinfer.serving.pooling.blocking_calls import run_task
from jaxinfer.serving.pooling.embedding import embedding_task
from jaxinfer.serving.pooling.scoring import read_score_inputs, score_output
from jaxinfer.serving.pooling.task import ONLY_POOLS
from jaxinfer.serving.requests.new_request import NewRequest


class PoolingDoor(Door):
    """The calls of an engine that sample nothing.

    Args:
        handle: of the engine.

    Attributes:
        judge: chooses between labels, ranks documents and scores pairs of texts.
    """

    def __init__(self, handle: Handle) -> None:
        super().__init__(handle)
        self.judge = Judge(handle)

    @overload
    def score(
        self,
        inputs: Any,
        *,
        lora_request: AdapterChoice | Sequence[AdapterChoice] = None,
        use_tqdm: bool | Callable[..., Any] = False,
    ) -> list[ScoreOutput]: ...
    @overload
    def score(
        self,
        inputs: str | Sequence[str],
        documents: str | Sequence[str],
        *,
        use_tqdm: bool | Callable[..., Any] = False,
    ) -> list[PairScore]: ...
    def score(
        self,
        inputs: Any,
        documents: Any = None,
        *,
        lora_request: AdapterChoice | Sequence[AdapterChoice] = None,
        use_tqdm: bool | Callable[..., Any] = False,
    ) -> list[ScoreOutput] | list[PairScore]:
        """Log-probabilities of given tokens, at temperature 1; or, of two arguments, relevance.

        Args:
            inputs: a prompt as in `generate` (every token but the first is scored), a tuple
                (context, continuation) of strings or token ids (the continuation is scored), or a
                list of these. With `documents`: a query for all of them, or one for each.
            documents: as of `Judge.score_pairs`, whose scores are then returned.
            lora_request: as in `generate`; not with `documents`.
            use_tqdm: as in `generate`.

        Returns:
            One output for each input, or document, in order.

        Raises:
            TypeError, ValueError, ModelLoadError: as in `generate`, or as in `Judge.score_pairs`.
            StepError: the model's output for an input was not finite.
        """
        if documents is not None:
            if lora_request is not None:
                raise ValueError(
                    "lora_request can't be given with documents: relevance is the model's"
                )
            return self.judge.score_pairs(inputs, documents, use_tqdm=use_tqdm)
        driver = self._handle.driver
        if self.engine_config.runner == "pooling":
            raise ValueError(ONLY_POOLS)
        prompts, starts = read_score_inputs(inputs, self._handle.loaded.reader)
        if lora_request is not None:
            prompts = self._handle.arguments.adapters.adapted(prompts, lora_request)
        params = SamplingParams(prompt_logprobs=0)
        requests = [NewRequest(prompt=p, params=params, prefill_only=True) for p in prompts]
        outputs = run_requests(driver, requests, use_tqdm=use_tqdm)
        return [score_output(o, start) for o, start in zip(outputs, starts, strict=True)]

    def embed(
        self,
        prompts: Any,
        *,
        dimensions: int | None = None,
        prompt_name: str | None = None,
        normalize: bool = True,
        use_tqdm: bool | Callable[..., Any] = False,
    ) -> list[EmbeddingOutput]:
        """Texts as vectors: the model's final hidden state at each text's last token.

        Nothing is sampled, so that a text may have all tokens of the model's length. Texts share
        steps, pages and cached prefixes with all other requests.

        Args:
            prompts: as in `generate`.
            dimensions: keep this many leading numbers of each vector, of a model whose files say
                that it is trained for it (`is_matryoshka` or `matryoshka_dimensions`).
            prompt_name: put this prompt of the model's `config_sentence_transformers.json` in
                front of each text.
            normalize: make each vector's Euclidean norm 1.
            use_tqdm: as in `generate`.

        Returns:
            One output for each prompt, in order.

        Raises:
            TypeError, ValueError: as in `generate`; the model's vectors can't be cut so, it has no
                such prompt, or its files ask for another pooling than that of the last token.
            ModelLoadError: one of these files is damaged.
            StepError: the model's output for a prompt was not finite.
        """
        driver, reader, model = (
            self._handle.driver,
            self._handle.loaded.reader,
            self.embedding_model,
        )
        task = embedding_task(
            model,
            prompts,
            reader,
            dimensions=dimensions,
            prompt_name=prompt_name,
            normalize=normalize,
        )
        return run_task(driver, self._handle.head, task, use_tqdm=use_tqdm)

    def decide(
        self, prompts: Any, labels: Sequence[str], *, use_tqdm: bool | Callable[..., Any] = False
    ) -> list[Decision]:
        """Probabilities of labels after prompts, from one prefill: see `Judge.decide`."""
        return self.judge.decide(prompts, labels, use_tqdm=use_tqdm)

    def classify(
        self,
        prompts: Any,
        labels: Sequence[str] | None = None,
        *,
        use_tqdm: bool | Callable[..., Any] = False,
    ) -> list[Decision]:
        """Classes of prompts, by a classifying head or as `decide`: see `Judge.classify`."""
        return self.judge.classify(prompts, labels, use_tqdm=use_tqdm)

    def rerank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        instruction: str | None = None,
        top_n: int | None = None,
        use_tqdm: bool | Callable[..., Any] = False,
    ) -> list[RankedDocument]:
        """Documents by their relevance to a query, by a Qwen3-Reranker: see `Judge.rerank`."""
        return self.judge.rerank(
            query, documents, instruction=instruction, top_n=top_n, use_tqdm=use_tqdm
        )
