"""Quantizes the projections of a plain model in place, layer by layer, on calibration texts."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxinfer.model.architecture import architecture_of
from jaxinfer.model.calibration.gptq import gptq
from jaxinfer.model.calibration.programs import GROUPS, behind_layer, embedded, hessian, is_known
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.quantized.params import dequantize_weight
from jaxinfer.model.quantized.quantization import SCHEMES, Quantization

CALIBRATED = tuple(
    name for name, form in SCHEMES.items() if form.codes != "fp8" and form.inputs is None
)
"""Schemes whose weights can be calibrated."""
_LEAST_LENGTH = 128  # programs are compiled for each length, and shorter texts cost little


def check_calibration(config: ModelConfig) -> Quantization:
    """The form of weights that a config asks for.

    Raises:
        ValueError: calibration can't find such weights, or not in a model of this family.
    """
    form = config.quantization
    if form is None or form.codes == "fp8" or form.inputs is not None or form.act_order:
        raise ValueError(
            f"calibration is for {', '.join(CALIBRATED)} alone: integer weights, beside inputs of "
            "products that are not quantized"
        )
    if form.takes("lm_head") and not config.tie_word_embeddings:
        raise ValueError("calibration leaves the head plain; ignore lm_head in the quantization")
    if not is_known(config):
        raise ValueError(
            f"model_type {config.model_type} can't be calibrated: what the projections of its own "
            "kind of layer read is not known"
        )
    return form


def calibrate(
    params: dict[str, Any],
    config: ModelConfig,
    texts: Sequence[Sequence[int]],
    progress: Callable[[int, int], Any] = lambda done, total: None,
) -> None:
    """Replace the projections of a plain tree by nodes of ``config.quantization``, by GPTQ.

    Each projection is calibrated on what it reads behind all that are quantized before it. Beside
    the parameters the devices hold the residual streams of all texts, ``[T, E]`` in the model's
    dtype with T rounded up to a power of two, attention scores of one text, and some five arrays
    ``[I, I]`` of float32 for one projection.

    Args:
        params: the tree of a plain model, which becomes that of `config`, a layer at a time.
        config: the model's, with the form of its quantized weights.
        texts: token ids of calibration texts, at least one of each.
        progress: called with (layers done, layers) after each.

    Raises:
        ValueError: as `check_calibration`; there is no text, or one has no token or an id outside
            of the vocabulary; or what a projection reads is not finite. The tree is then of no use.
    """
    form, plain = check_calibration(config), replace(config, quantization=None)
    _check_texts(texts, config.vocab_size)
    batches = [
        (embedded(params, plain, jnp.asarray(ids)), jnp.asarray(lengths))
        for ids, lengths in _padded(texts)
    ]
    layers, kinds = params["model"]["layers"], architecture_of(config).layer_kinds(config)
    for index, kind in enumerate(kinds):
        layer, path = layers[str(index)], f"model.layers.{index}"
        made: dict[str, dict[str, Any]] = {}
        for group, (parent, names) in enumerate(GROUPS):
            taken = [name for name in names if form.takes(f"{path}.{parent}.{name}")]
            if not taken:
                continue
            total = hessian(layer, plain, kind, group, *batches[0])
            for batch in batches[1:]:
                total += hessian(layer, plain, kind, group, *batch)
            nodes = _nodes(layer[parent], taken, total, form, f"{path}.{parent}")
            made[parent] = made.get(parent, {}) | nodes
            read = {
                name: dequantize_weight(node, layer[parent][name].dtype)
                for name, node in nodes.items()
            }
            layer = {**layer, parent: {**layer[parent], **read}}
        batches = [
            (behind_layer(layer, plain, kind, streams), lengths) for streams, lengths in batches
        ]
        layers[str(index)] = layer | {
            parent: {**layer[parent], **nodes} for parent, nodes in made.items()
        }
        progress(index + 1, len(kinds))


def _nodes(
    parent: dict[str, Any],
    names: Sequence[str],
    hessian: jax.Array,
    form: Quantization,
    where: str,
) -> dict[str, dict[str, jax.Array]]:
    """The nodes of projections that read the same, made at once: all arrays are of outputs."""
    if not np.isfinite(jax.device_get(jnp.trace(hessian))):
        raise ValueError(f"{where}.{names[0]}: what it reads of the texts is not finite")
    ends = np.cumsum([len(parent[name]) for name in names])
    node = gptq(jnp.concatenate([parent[name] for name in names]), hessian, form)
    parts = {part: jnp.split(array, ends[:-1]) for part, array in node.items()}
    return {
        name: {part: pieces[index] for part, pieces in parts.items()}
        for index, name in enumerate(names)
    }


def _check_texts(texts: Sequence[Sequence[int]], vocab_size: int) -> None:
    if not texts:
        raise ValueError("calibration needs a text")
    for index, token_ids in enumerate(texts):
        if not len(token_ids):
            raise ValueError(f"texts[{index}] has no token; calibration needs at least one")
        if not 0 <= min(token_ids) <= max(token_ids) < vocab_size:
            raise ValueError(f"texts[{index}] has ids outside of [0, {vocab_size})")


def _padded(texts: Sequence[Sequence[int]]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Ids int32 ``[N, T]`` of texts of about the same length, and int32 ``[N]``, their lengths."""
    by_length: dict[int, list[Sequence[int]]] = defaultdict(list)
    for token_ids in texts:
        by_length[1 << (max(len(token_ids), _LEAST_LENGTH) - 1).bit_length()].append(token_ids)
    padded = []
    for length, some in sorted(by_length.items()):
        ids = np.zeros((len(some), length), np.int32)
        for row, token_ids in zip(ids, some, strict=True):
            row[: len(token_ids)] = token_ids
        padded.append((ids, np.asarray([len(each) for each in some], np.int32)))
    return padded
