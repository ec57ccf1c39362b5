"""Classifying heads: a few rows that score classes by a decoder's final hidden state.

They are those of transformers' `...ForSequenceClassification` classes. The host holds the rows and
multiplies by them, so that devices hold and run the decoder alone.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from jaxinfer.checks import show
from jaxinfer.errors import ModelLoadError
from jaxinfer.model.checkpoint.source_plan import FLOATS
from jaxinfer.model.checkpoint.weight_files import tensor_entries
from jaxinfer.model.families.table import classifier_of_file

SCORE = "score.weight"
"""The tensor that holds the rows."""

Activation = Literal["sigmoid", "softmax", "identity"]

_OF_PROBLEM: dict[Any, Activation] = {
    "regression": "identity",
    "single_label_classification": "softmax",
    "multi_label_classification": "sigmoid",
}
_OF_MODULE: dict[Any, Activation] = {
    "torch.nn.modules.activation.Sigmoid": "sigmoid",
    "torch.nn.modules.activation.Softmax": "softmax",
    "torch.nn.modules.linear.Identity": "identity",
}


@dataclasses.dataclass(frozen=True)
class ScoreHead:
    """The classifying head of a model's files.

    Attributes:
        rows: float32 ``[N, E]``.
        labels: the N classes, in the rows' order.
        activation: makes scores of a prompt's logits; softmax is over all of them, and of a single
            one the sigmoid, as in vLLM.
    """

    rows: np.ndarray
    labels: tuple[str, ...]
    activation: Activation

    def logits(self, hidden: np.ndarray) -> np.ndarray:
        """Float64 ``[N]`` of a final hidden state ``[E]``."""
        return self.rows.astype(np.float64) @ hidden.astype(np.float64)

    def scores(self, logits: np.ndarray) -> np.ndarray:
        """Float64 ``[N]``: the logits ``[N]`` behind the activation."""
        if self.activation == "identity":
            return logits
        if self.activation == "sigmoid" or len(logits) == 1:
            small = np.exp(-np.abs(logits))  # never overflows
            return np.where(logits >= 0, 1.0, small) / (1.0 + small)
        weights = np.exp(logits - logits.max())
        return weights / weights.sum()


def backbone_config(mapping: Mapping[str, Any]) -> Mapping[str, Any]:
    """The config.json object of the decoder behind a classifying head; others are as they are.

    It reads as that of a tied language model, which needs no tensors but the decoder's.
    """
    family = classifier_of_file(mapping)
    if family is None:
        return mapping
    return {**mapping, "architectures": [family.hf_class], "tie_word_embeddings": True}


def read_score_head(
    directory: Path, mapping: Mapping[str, Any], hidden_size: int
) -> ScoreHead | None:
    """The classifying head of a model directory; None for another model.

    Raises:
        ModelLoadError: there are no rows, not of E values, or not as many as config.json has
            classes; or it asks for an activation that is not run. One line.
    """
    if classifier_of_file(mapping) is None:
        return None
    source = directory / "config.json"
    rows = _read_rows(directory, hidden_size)
    labels = _labels(mapping, len(rows), source)
    return ScoreHead(rows, labels, _activation(mapping, source))


def _read_rows(directory: Path, hidden_size: int) -> np.ndarray:
    entry = tensor_entries(directory).get(SCORE)
    if entry is None:
        raise ModelLoadError(f"{directory}: config.json's classifier needs a tensor {SCORE!r}")
    if len(entry.shape) != 2 or entry.shape[1] != hidden_size or not entry.shape[0]:
        raise ModelLoadError(
            f"{entry.file}: {SCORE} has shape {entry.shape}, config.json implies "
            f"(classes, {hidden_size})"
        )
    if entry.dtype.name not in FLOATS:
        raise ModelLoadError(
            f"{entry.file}: {SCORE} has dtype {entry.dtype.name}, must be {' or '.join(FLOATS)}"
        )
    rows = np.array(entry.mapped(), np.float32)
    if not np.isfinite(rows).all():
        raise ModelLoadError(f"{entry.file}: {SCORE} holds NaN or infinity")
    return rows


def _labels(mapping: Mapping[str, Any], count: int, source: Path) -> tuple[str, ...]:
    """The names of `count` classes; where the file has none, `LABEL_0` and so on."""
    declared = mapping.get("num_labels")
    if declared is not None and (type(declared) is not int or declared != count):
        raise ModelLoadError(f"{source}: num_labels is {show(declared)}, but {SCORE} has {count}")
    names = mapping.get("id2label")
    if names is None:
        return tuple(f"LABEL_{i}" for i in range(count))
    if not isinstance(names, Mapping) or {*names} != {str(i) for i in range(count)}:
        raise ModelLoadError(
            f"{source}: id2label must name the {count} rows of {SCORE}, got {show(names)}"
        )
    labels = tuple(names[str(i)] for i in range(count))
    if not all(isinstance(label, str) for label in labels) or len({*labels}) != count:
        raise ModelLoadError(f"{source}: id2label must name each class by a text of its own")
    return labels


def _activation(mapping: Mapping[str, Any], source: Path) -> Activation:
    """As vLLM chooses it: by a cross encoder's own field, else by the kind of problem."""
    inner = mapping.get("sentence_transformers")
    module = inner.get("activation_fn") if isinstance(inner, Mapping) else None
    name, given, known = "sentence_transformers.activation_fn", module, _OF_MODULE
    if module is None:
        name, known = "problem_type", _OF_PROBLEM
        given = mapping.get(name)
        if given is None:
            return "softmax"
    if not isinstance(given, str) or given not in known:
        raise ModelLoadError(
            f"{source}: {name} must be one of {', '.join(known)}, got {show(given)}"
        )
    return known[given]
