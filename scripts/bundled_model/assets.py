"""Writes a model directory that Hugging Face and the engine read alike."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from jaxinfer.model.checkpoint.weights import save_params
from jaxinfer.model.config import ModelConfig
from scripts.bundled_model.config import MAX_POSITIONS
from scripts.bundled_model.rendering import TEMPLATE
from scripts.bundled_model.tokenizer import END_OF_TEXT, TURN_END

MAX_BYTES = 8_000_000
"""What the files may weigh together."""


def write_model(
    directory: Path, config: ModelConfig, tokenizer: Tokenizer, params: Mapping[str, Any]
) -> None:
    """Writes config, weights, tokenizer, chat template and generation defaults.

    Args:
      directory: made if it does not exist; files of the same names are replaced.
      config: the model's shape.
      tokenizer: the trained tokenizer.
      params: the weights, in the dtype to store.

    Raises:
      ValueError: the files are larger than `MAX_BYTES` together.
    """
    save_params(params, config, directory)
    _write_json(directory / "generation_config.json", _generation_config(config))
    _write_json(directory / "tokenizer_config.json", _tokenizer_config())
    tokenizer.save(str(directory / "tokenizer.json"), pretty=False)
    if directory.resolve() != TEMPLATE.parent.resolve():
        shutil.copyfile(TEMPLATE, directory / TEMPLATE.name)
    size = sum(file.stat().st_size for file in directory.iterdir())
    if size > MAX_BYTES:
        raise ValueError(f"{directory} holds {size:,} bytes, {MAX_BYTES:,} are allowed")


def _generation_config(config: ModelConfig) -> dict[str, Any]:
    """Qwen3's own defaults."""
    return {
        "bos_token_id": config.bos_token_id,
        "do_sample": True,
        "eos_token_id": list(config.eos_token_ids),
        "pad_token_id": config.bos_token_id,
        "temperature": 0.6,
        "top_k": 20,
        "top_p": 0.95,
    }


def _tokenizer_config() -> dict[str, Any]:
    return {
        "add_bos_token": False,
        "add_prefix_space": False,
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": TURN_END,
        "errors": "replace",
        "model_max_length": MAX_POSITIONS,
        "pad_token": END_OF_TEXT,
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }


def _write_json(file: Path, content: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
