"""Decisions between labels, by the logits of the labels' first tokens."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxinfer.checks import check_strings
from jaxinfer.decisions import Decision
from jaxinfer.model.score_head import ScoreHead
from jaxinfer.outputs import RequestOutput
from jaxinfer.serving.pooling.task import HeadRows, PoolingTask
from jaxinfer.serving.pooling.token_logits import PromptLogits, prompt_logits
from jaxinfer.serving.requests.new_request import Prompt
from jaxinfer.serving.requests.prompts import PromptReader

MAX_LABELS = 1024
LONGEST_LABEL = 4096  # characters


def decision_task(
    prompts: Sequence[Prompt], labels: Any, reader: PromptReader, classifier: ScoreHead | None
) -> PoolingTask[list[Decision]]:
    """The task of a choice between labels after each of these prompts.

    Args:
        prompts: checked prompts.
        labels: as the caller gave them.
        reader: checks and tokenizes them.
        classifier: the model's classifying head; None of a language model.

    Raises:
        TypeError, ValueError: as of `read_labels`; or the model is a classifier.
    """
    if classifier is not None:
        raise ValueError(
            "labels: this model has a classifying head and no language model's, which decides "
            "between texts; call classify(prompts) for its own classes"
        )
    tokens = read_labels(labels, reader)
    names = tuple(tokens)

    def answer(outputs: Sequence[RequestOutput], head: HeadRows) -> list[Decision]:
        return [decision(names, found) for found in prompt_logits(outputs, head)]

    return PoolingTask(prompts, tuple(tokens.values()), answer)


def read_labels(given: Any, reader: PromptReader) -> dict[str, int]:
    """The first token of each label, in the labels' order.

    Args:
        given: two or more texts that each go on from a prompt.
        reader: has the tokenizer.

    Raises:
        TypeError: it is no list of strings.
        ValueError: there are fewer than two, one is given twice, has no token of the model, or
            begins with the token of another; or there is no tokenizer.
    """
    labels = check_strings("labels", given, MAX_LABELS, LONGEST_LABEL)
    if len(labels) < 2:
        raise ValueError(
            f"labels has {len(labels)} entries; a decision needs at least two, so give them all"
        )
    if (tokenizer := reader.tokenizer) is None:
        raise ValueError("labels are texts, and this engine has no tokenizer; give it one")
    for i, label in enumerate(labels):
        reader.check_text(f"labels[{i}]", label, num_outputs=0)
        if label in labels[:i]:
            raise ValueError(f"labels has {label!r} twice; give each once")
    first: dict[int, str] = {}
    for label, ids in zip(labels, tokenizer.encode_following(labels), strict=True):
        if not ids or ids[0] >= reader.vocab_size:
            raise ValueError(f"label {label!r} begins with no token of the model; write another")
        if (other := first.setdefault(ids[0], label)) != label:
            raise ValueError(
                f"labels {other!r} and {label!r} begin with the same token "
                f"({tokenizer.token_text(ids[0])!r}), by which they can't be told apart; write "
                "them so that they begin differently, such as 'A' and 'B' with a list of what "
                "these mean in the prompt"
            )
    return {label: token_id for token_id, label in first.items()}


def decision(labels: Sequence[str], found: PromptLogits) -> Decision:
    """The decision that logits of the labels' first tokens make."""
    weights = np.exp(found.logits - found.logits.max())
    probabilities = (weights / weights.sum()).tolist()
    output = found.output
    return Decision(
        label=labels[int(found.logits.argmax())],
        probabilities=dict(zip(labels, probabilities, strict=True)),
        logits=dict(zip(labels, found.logits.tolist(), strict=True)),
        prompt_token_ids=output.prompt_token_ids,
        num_cached_tokens=output.num_cached_tokens,
        weight_version=output.weight_version,
    )
