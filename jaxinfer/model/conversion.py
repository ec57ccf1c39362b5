"""Converts a model directory between safetensors and Orbax, keeping it loadable."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from jaxinfer.model import checkpoint
from jaxinfer.model.checkpoint_files import contained_file
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.weights import load_params, save_params

Format = Literal["safetensors", "orbax"]

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
)


def convert_directory(
    source: Path,
    destination: Path,
    to: Format | None = None,
    dtype: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Format:
    """Write the model of ``source`` to ``destination`` in the other format.

    Args:
        source: a model directory, safetensors or Orbax.
        destination: a directory that doesn't exist or is empty.
        to: format to write; the one that ``source`` is not in if None.
        dtype: of the written weights; the one config.json names if None.
        progress: called with (bytes read, bytes in all).

    Returns:
        The format written.

    Raises:
        ModelLoadError: ``source`` can't be loaded.
        ValueError: ``destination`` holds files.
    """
    if destination.exists() and (not destination.is_dir() or any(destination.iterdir())):
        raise ValueError(f"{destination}: exists and is not an empty directory")
    config = ModelConfig.from_directory(source)
    to = to or ("safetensors" if checkpoint.is_checkpoint(source) else "orbax")
    dtype = dtype or config.dtype
    params = load_params(source, config, dtype, progress=progress)
    destination.mkdir(parents=True, exist_ok=True)
    if to == "safetensors":
        save_params(params, config, destination)
    else:
        checkpoint.save(params, destination)
    _copy_config(source, destination, dtype)
    for name in _COMPANIONS:
        if (source / name).exists():
            shutil.copyfile(contained_file(source, name, source), destination / name)
    return to


def _copy_config(source: Path, destination: Path, dtype: str) -> None:
    """Keep every key of the original config.json, so that other programs still find theirs."""
    mapping = json.loads((source / "config.json").read_text(encoding="utf-8"))
    mapping.pop("auto_map", None)  # it names Python files, which are not copied
    key = "dtype" if "dtype" in mapping else "torch_dtype"
    text = json.dumps({**mapping, key: dtype}, indent=2, ensure_ascii=False)
    (destination / "config.json").write_text(text + "\n", encoding="utf-8")
