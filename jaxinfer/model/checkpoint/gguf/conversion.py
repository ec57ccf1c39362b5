"""Writes a GGUF file's model as a directory that the engine and transformers read."""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import tokenizers

from jaxinfer.errors import ModelLoadError
from jaxinfer.model.architecture import abstract_params
from jaxinfer.model.checkpoint.directory_files import contained_file, has_file
from jaxinfer.model.checkpoint.gguf.config import read_config
from jaxinfer.model.checkpoint.gguf.header import GgufHeader, read_header
from jaxinfer.model.checkpoint.gguf.tensors import lazy_leaves
from jaxinfer.model.checkpoint.gguf.tokenizer import (
    Vocabulary,
    make_tokenizer,
    read_vocabulary,
    write_templates,
    write_tokenizer,
)
from jaxinfer.model.checkpoint.output_directory import (
    check_destination,
    check_space,
    written_beside,
)
from jaxinfer.model.checkpoint.parameter_names import flatten, unflatten
from jaxinfer.model.checkpoint.weights import save_params
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.text.added_tokens import read_settings
from jaxinfer.model.text.template_files import read_templates
from jaxinfer.model.text.tokenizer import Tokenizer

_TOKENIZER = "tokenizer.json"
_BESIDE = (
    *(_TOKENIZER, "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("generation_config.json", "chat_template.jinja"),
)


def convert_gguf(
    file: Path,
    destination: Path,
    dtype: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Write the model of a GGUF file to ``destination``: all of it or nothing.

    Weights are dequantized one at a time into safetensors. The tokenizer and the chat templates are
    those of the file; where a tokenizer.json lies beside it, that and the files with it.

    Args:
        file: a little-endian GGUF file of version 2 or 3.
        destination: a directory that doesn't exist or is empty.
        dtype: of the written weights; bfloat16 if None.
        progress: called with (bytes read, bytes in all).

    Raises:
        ModelLoadError: the file is damaged, or holds what is not converted; one line, before
            memory is taken for weights.
        ValueError: ``destination`` holds files.
        OSError: it can't be written, or its disk is too small.
        MissingPackageError: gguf is not installed.
    """
    check_destination(destination)
    header = read_header(file)
    dtype = dtype or "bfloat16"
    config = read_config(header, dtype)
    vocabulary = read_vocabulary(header)
    if len(vocabulary.tokens) > config.vocab_size:
        raise ModelLoadError(
            f"{file}: {len(vocabulary.tokens)} tokens, and embeddings of {config.vocab_size}"
        )
    if is_beside := has_file(file.parent, _TOKENIZER):
        backend = _read_beside(vocabulary)
    else:
        backend = make_tokenizer(vocabulary)
    Tokenizer(backend, origin=str(file))  # refuses one that could not be served
    described = dict(flatten(abstract_params(config, dtype)))
    shapes = {path: leaf.shape for path, leaf in described.items()}
    leaves = lazy_leaves(header, config, shapes, np.dtype(dtype), _counter(header, progress))
    with written_beside(destination) as partial:
        sizes = [leaf.size * leaf.dtype.itemsize for leaf in described.values()]
        check_space(destination, sum(sizes))
        save_params(unflatten(leaves), config, partial)
        _write_generation_config(config, partial)
        if is_beside:
            _copy_beside(file, partial)
        else:
            write_tokenizer(backend, vocabulary, partial, config.max_position_embeddings)
        if not read_templates(partial, read_settings(partial)):
            write_templates(header, partial)


def _counter(
    header: GgufHeader, progress: Callable[[int, int], None] | None
) -> Callable[[int], None]:
    """Adds up bytes and passes their sum on."""
    total, done = sum(tensor.num_bytes for tensor in header.tensors.values()), 0

    def on_read(num_bytes: int) -> None:
        nonlocal done
        done += num_bytes
        if progress is not None:
            progress(done, total)

    return on_read


def _read_beside(vocabulary: Vocabulary) -> tokenizers.Tokenizer:
    """The tokenizer of a tokenizer.json beside the file."""
    path = contained_file(vocabulary.file.parent, _TOKENIZER, vocabulary.file)
    try:
        found = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception for damaged files
        raise ModelLoadError(f"{path}: not a tokenizer: {error!s:.200}") from None
    for i, token in enumerate(vocabulary.tokens):
        other = found.id_to_token(i)
        if other is not None and other != token:
            raise ModelLoadError(
                f"{path}: token {i} is {other!r:.60}, and {token!r:.60} in {vocabulary.file.name}; "
                "move what belongs to another model away"
            )
    return found


def _copy_beside(file: Path, directory: Path) -> None:
    for name in _BESIDE:
        if has_file(file.parent, name):
            shutil.copyfile(contained_file(file.parent, name, file), directory / name)


def _write_generation_config(config: ModelConfig, directory: Path) -> None:
    fields: Mapping[str, object] = {
        "bos_token_id": config.bos_token_id,
        "eos_token_id": list(config.eos_token_ids),
    }
    text = json.dumps(fields, indent=2)
    (directory / "generation_config.json").write_text(text + "\n", encoding="utf-8")
