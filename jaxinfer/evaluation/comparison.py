"""Runs one model or two over token ids, a text at a time, and gathers each token's figures."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxinfer.checks import show
from jaxinfer.evaluation.figures import Evaluation, TextFigures
from jaxinfer.evaluation.programs import (
    Streams,
    divergences,
    log_probabilities,
    nlls,
    squared_norms,
    text_states,
)
from jaxinfer.model.architecture import abstract_params, architecture_of
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.layers.context import Params

_LEAST_LENGTH = 16
_CHUNK_ELEMENTS = 1 << 25
"""Log-probabilities of a model that are in memory at once, unless 16 tokens have more."""


@dataclass(frozen=True, eq=False)
class Model:
    """What computes logits.

    Attributes:
        config: its shape.
        params: tree as of `abstract_params`, computed in the dtype of its norms.
    """

    config: ModelConfig
    params: Params


def compare(
    model: Model,
    reference: Model | None,
    texts: Sequence[Sequence[int]],
    progress: Callable[[], Any] = lambda: None,
) -> Evaluation:
    """How far a model is from another over given texts, and how well each predicts them.

    Every token but a text's first is predicted from those before it. A text is padded to a power of
    two, and programs are compiled for each such length. Beside both models' parameters the devices
    hold the residual streams of one text, ``[L, T, E]`` of each model, and logits of a few tokens.

    Args:
        model: the model to judge.
        reference: what it is compared with; None for the model's perplexity alone.
        texts: ids in [0, V), at least two of each text.
        progress: called after each text.

    Returns:
        Figures of each token, in the order of the texts; `Evaluation.layer_errors` is None without
        a reference, and where both models' layers are not as many, or not as wide.

    Raises:
        ValueError: the vocabularies differ in size, parameters are not of their config's form,
            there is no text, one is too short or has another id, or logits are not finite.
        TypeError: a text is no list of integers.
    """
    models = [model] if reference is None else [model, reference]
    sizes = [each.config.vocab_size for each in models]
    if len({*sizes}) > 1:
        raise ValueError(f"vocab_size is {sizes[0]}, the reference's {sizes[1]}; they must be one")
    check_texts(texts, sizes[0], least=2)
    for each in models:
        check_params(each)
    shapes = {(each.config.num_hidden_layers, each.config.hidden_size) for each in models}
    figures, norms = [], []
    for index, token_ids in enumerate(texts):
        streams, rows = _read(models, token_ids)
        try:
            figures.append(TextFigures(*rows))
        except ValueError as error:
            raise ValueError(f"texts[{index}]: {error}") from None
        if len(models) == 2 and len(shapes) == 1:
            squares = jax.device_get(squared_norms(*streams))
            norms.append([each[:, : len(token_ids)].sum(1, np.float64) for each in squares])
        progress()
    if not norms:
        return Evaluation(tuple(figures))
    difference, whole = np.sum(norms, axis=0)
    return Evaluation(tuple(figures), tuple(np.sqrt(difference / whole).tolist()))


def check_texts(texts: Sequence[Sequence[int]], vocab_size: int, *, least: int) -> None:
    """Check that there are texts, each of at least `least` token ids below `vocab_size`.

    Raises:
        ValueError: there is none, or one is too short or has another id; names it.
        TypeError: one is no list of integers; names it.
    """
    if len(texts) == 0:
        raise ValueError("there is no text")
    for index, token_ids in enumerate(texts):
        ids = np.asarray(token_ids)
        if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
            raise TypeError(f"texts[{index}] must be a list of token ids, got {show(token_ids)}")
        if ids.size < least:
            raise ValueError(f"texts[{index}] has {ids.size} tokens; it needs at least {least}")
        if not 0 <= ids.min() <= ids.max() < vocab_size:
            raise ValueError(f"texts[{index}] has ids outside of [0, {vocab_size})")


def check_params(model: Model) -> None:
    """Check that a model's parameters are of its config's form; they may have more layers.

    Raises:
        ValueError: one is not there, as in a plain tree beside a quantized config, or has another
            shape; names it.
    """
    leaves = jax.tree_util.tree_leaves_with_path
    given = dict(leaves(model.params))
    for path, like in leaves(abstract_params(model.config, jnp.float32)):
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        if path not in given:
            raise ValueError(f"params lack {name}, which their config has; give a tree of its form")
        if (shape := jnp.shape(given[path])) != like.shape:
            raise ValueError(f"params[{name}] must have shape {like.shape}, got {shape}")


def _read(
    models: Sequence[Model], token_ids: Sequence[int]
) -> tuple[list[Streams], list[np.ndarray]]:
    """The padded residual streams of each model, and the fields of `TextFigures` for a text."""
    ids = padded(token_ids)
    length, behind = len(ids), np.append(ids, np.int32(0))
    states = [text_states(each.params, each.config, jnp.asarray(ids)) for each in models]
    heads = [architecture_of(each.config).head_params(each.params) for each in models]
    count = min(length, _chunk(models[0].config.vocab_size))
    chunks: list[list[jax.Array]] = []
    for start in range(0, len(token_ids) - 1, count):
        log_probs = [
            log_probabilities(head, each.config, hidden, jnp.int32(start), count)
            for each, head, (_, hidden) in zip(models, heads, states, strict=True)
        ]
        following = jnp.asarray(behind[start + 1 : start + 1 + count])
        chunks.append([nlls(each, following) for each in log_probs])
        if len(models) == 2:
            chunks[-1] += divergences(*log_probs)
    rows = [np.concatenate(each) for each in zip(*jax.device_get(chunks), strict=True)]
    rows = [row.astype(np.float64) if row.dtype != bool else row for row in rows]
    return [streams for streams, _ in states], [row[: len(token_ids) - 1] for row in rows]


def padded(token_ids: Sequence[int]) -> np.ndarray:
    """Int32, with zeros behind the text up to a power of two."""
    ids = np.zeros(1 << (max(len(token_ids), _LEAST_LENGTH) - 1).bit_length(), np.int32)
    ids[: len(token_ids)] = token_ids
    return ids


def _chunk(vocab_size: int) -> int:
    """Tokens whose logits are computed at once: a power of two, so that it divides a length."""
    fitting = max(_LEAST_LENGTH, _CHUNK_ELEMENTS // vocab_size)
    return 1 << (fitting.bit_length() - 1)
