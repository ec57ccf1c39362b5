"""Classes of prompts, by the classifying head of a model's files."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxinfer.decisions import Decision
from jaxinfer.errors import StepError
from jaxinfer.model.score_head import ScoreHead
from jaxinfer.outputs import RequestOutput
from jaxinfer.serving.pooling.decisions import decision_task
from jaxinfer.serving.pooling.task import HeadRows, PoolingTask, vector_of
from jaxinfer.serving.requests.new_request import Prompt
from jaxinfer.serving.requests.prompts import PromptReader


def classify_task(
    prompts: Sequence[Prompt], labels: Any, reader: PromptReader, classifier: ScoreHead | None
) -> PoolingTask[list[Decision]]:
    """The task of a call of `classify`.

    Args:
        prompts: checked prompts.
        labels: as the caller gave them, for a language model; None for a classifier.
        reader: checks and tokenizes them.
        classifier: the model's classifying head; None of a language model.

    Raises:
        TypeError: as of `decision_task`.
        ValueError: as of that; or labels are missing, or given to a classifier.
    """
    if classifier is None:
        if labels is None:
            raise ValueError(
                "labels: this model has no classifying head; give the classes, as texts that go on "
                "from every prompt, and prompts in such words that they do"
            )
        return decision_task(prompts, labels, reader, None)
    if labels is not None:
        known = ", ".join(classifier.labels[:8])
        raise ValueError(
            f"labels: this model has a classifying head with classes of its own ({known:.200}); "
            "leave labels out"
        )

    def answer(outputs: Sequence[RequestOutput], _: HeadRows) -> list[Decision]:
        return [_class_of(output, classifier) for output in outputs]

    return PoolingTask(prompts, (), answer)


def relevance(output: RequestOutput, classifier: ScoreHead) -> float:
    """The score of a prompt by a head of one class.

    Raises:
        StepError: the request failed, or its logit is not finite.
    """
    return float(classifier.scores(_logits(output, classifier))[0])


def check_scores(classifier: ScoreHead) -> None:
    """Refuse a head of several classes, which says nothing of a document's relevance.

    Raises:
        ValueError: it has several.
    """
    if len(classifier.labels) != 1:
        raise ValueError(
            f"the classifying head has {len(classifier.labels)} classes, and relevance is the "
            "score of a single one; call classify(prompts)"
        )


def _class_of(output: RequestOutput, classifier: ScoreHead) -> Decision:
    logits = _logits(output, classifier)
    scores = classifier.scores(logits).tolist()
    return Decision(
        label=classifier.labels[int(logits.argmax())],
        probabilities=dict(zip(classifier.labels, scores, strict=True)),
        logits=dict(zip(classifier.labels, logits.tolist(), strict=True)),
        prompt_token_ids=output.prompt_token_ids,
        num_cached_tokens=output.num_cached_tokens,
        weight_version=output.weight_version,
    )


def _logits(output: RequestOutput, classifier: ScoreHead) -> np.ndarray:
    logits = classifier.logits(vector_of(output))
    if not np.isfinite(logits).all():
        raise StepError("logits are not finite: the weights are damaged")
    return logits
