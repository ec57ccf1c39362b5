"""Converts a model directory between safetensors and Orbax, keeping it loadable."""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from jaxinfer.model.adapters.merging import Merge, read_merges
from jaxinfer.model.architecture import abstract_params
from jaxinfer.model.checkpoint import orbax_files as checkpoint
from jaxinfer.model.checkpoint.directory_files import (
    additional_templates,
    contained_file,
    has_file,
)
from jaxinfer.model.checkpoint.output_directory import (
    check_destination,
    check_space,
    written_beside,
)
from jaxinfer.model.checkpoint.safetensors_file import write_file
from jaxinfer.model.checkpoint.weights import load_params, save_params
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.hf_config import read_config_file
from jaxinfer.model.hf_overrides import decoder_config
from jaxinfer.model.quantized.config_json import quantization_config
from jaxinfer.model.quantized.quantization import Quantization, with_scheme
from jaxinfer.model.score_head import SCORE, SCORE_FILE, read_score_head, score_entry

Format = Literal["safetensors", "orbax"]
Calibrate = Callable[[dict[str, Any], ModelConfig], None]

# What makes a directory a usable model besides its weights and config.json.
_COMPANIONS = (
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "modules.json",
    "1_Pooling/config.json",
    "config_sentence_transformers.json",
)


def convert_directory(
    source: Path,
    destination: Path,
    to: Format | None = None,
    dtype: str | None = None,
    progress: Callable[[int, int], None] | None = None,
    quantize: str | None = None,
    calibrate: Calibrate | None = None,
    adapter: Path | None = None,
) -> Format:
    """Write the model of ``source`` to ``destination`` in the other format: all of it or nothing.

    Quantized weights are written as compressed-tensors has them, whatever they were stored as.

    Args:
        source: a model directory, safetensors or Orbax.
        destination: a directory that doesn't exist or is empty.
        to: format to write; the one that ``source`` is not in if None, or safetensors if it is to
            be quantized or merged.
        dtype: of the written weights; the one config.json names if None.
        progress: called with (bytes read, bytes in all).
        quantize: a scheme of `SCHEMES` that plain weights are rounded by.
        calibrate: ``(plain tree, config)``, makes it the quantized tree of that config instead of
            rounding to the nearest.
        adapter: a directory of PEFT that is merged into plain weights, before they are quantized.

    Returns:
        The format written.

    Raises:
        ModelLoadError: ``source`` or the adapter can't be loaded, or they don't fit.
        ValueError: ``destination`` holds files; or there is no such scheme, or the model does not
            fit it; or an adapter is to be merged into quantized weights.
        OSError: it can't be written, or its disk is too small.
    """
    check_destination(destination)
    config = decoder_config(source / "config.json")
    head = _classifying_head(source, config.hidden_size, dtype)
    dtype = dtype or config.dtype
    merges = {} if adapter is None else _merges(adapter, config, dtype)
    if quantize is not None:
        config = with_scheme(config, quantize)
    from_safetensors = not checkpoint.is_checkpoint(source)
    is_remade = quantize is not None or adapter is not None
    to = to or ("orbax" if from_safetensors and not is_remade else "safetensors")
    with written_beside(destination) as partial:
        leaves = jax.tree.leaves(abstract_params(config, dtype)) + list(head.values())
        check_space(destination, sum(leaf.size * leaf.dtype.itemsize for leaf in leaves))
        read = config if calibrate is None else replace(config, quantization=None)
        params = load_params(
            source, read, dtype, progress=progress, beside=tuple(head), changes=merges
        )
        if calibrate is not None:
            calibrate(params, config)
        if to == "safetensors":
            save_params(params, config, partial, beside=head)
        else:
            checkpoint.save(params, partial)
            if head:
                write_file(partial / SCORE_FILE, head.items(), head)
        # A family's text half is saved as the family of this half, whose config.json is there.
        mapping = read_config_file(source / "config.json")
        if to == "orbax" or config.to_hf()["model_type"] == mapping.get("model_type"):
            _write_config(mapping, partial, dtype, config.quantization)
        for name in (*_COMPANIONS, *additional_templates(source).values()):
            if has_file(source, name):
                (partial / name).parent.mkdir(exist_ok=True)
                shutil.copyfile(contained_file(source, name, source), partial / name)
    return to


def _merges(adapter: Path, config: ModelConfig, dtype: str) -> dict[str, Merge]:
    if config.quantization is not None:
        raise ValueError(
            f"{adapter}: an adapter is merged into plain weights, and the model's are "
            f"{config.quantization.codes} already; merge it into the plain ones, and quantize these"
        )
    return read_merges(adapter, config, dtype)


def _classifying_head(source: Path, hidden_size: int, dtype: str | None) -> dict[str, np.ndarray]:
    """The tensor of a classifier's head, by its name; nothing of another model.

    It is as it was stored unless a dtype is given, since the engine scores with it in float32.
    """
    if read_score_head(source, read_config_file(source / "config.json"), hidden_size) is None:
        return {}
    rows = score_entry(source).mapped()
    return {SCORE: rows if dtype is None else np.asarray(rows, jnp.dtype(dtype))}


def _write_config(
    original: Mapping[str, Any], destination: Path, dtype: str, form: Quantization | None
) -> None:
    """Keep every key of the original config.json, so that other programs still find theirs.

    What it says of quantized weights is kept where they are written as they were stored.
    """
    mapping = dict(original)
    mapping.pop("auto_map", None)  # it names Python files, which are not copied
    if form is not None and form != form.saved():
        mapping["quantization_config"] = quantization_config(form)
        if isinstance(text := mapping.get("text_config"), Mapping):
            kept = {key: value for key, value in text.items() if key != "quantization_config"}
            mapping["text_config"] = kept
    key = "dtype" if "dtype" in mapping else "torch_dtype"
    text = json.dumps({**mapping, key: dtype}, indent=2, ensure_ascii=False)
    (destination / "config.json").write_text(text + "\n", encoding="utf-8")
