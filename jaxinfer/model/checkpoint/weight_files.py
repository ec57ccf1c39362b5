"""Finds the weight files of a model directory and refuses any that lie outside it."""

from collections import defaultdict
from pathlib import Path

from jaxinfer.errors import ModelLoadError
from jaxinfer.model.checkpoint.directory_files import (
    contained_file,
    has_file,
    is_pickle,
    read_json,
)
from jaxinfer.model.checkpoint.safetensors_file import TensorEntry, read_header

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
SUBDIRECTORY = "orbax"
_MAX_INDEX_BYTES = 64 << 20


def is_checkpoint(directory: Path) -> bool:
    """Whether a model directory holds an Orbax checkpoint (in its ``orbax`` subdirectory)."""
    return (directory / SUBDIRECTORY).is_dir()


def tensor_entries(directory: Path) -> dict[str, TensorEntry]:
    """Every tensor of a directory's safetensors file or shards, by its name in the file.

    Only headers are read.

    Raises:
        ModelLoadError: no safetensors, a missing or damaged shard, or one outside the directory.
    """
    index = directory / INDEX_FILE
    if (directory / SINGLE_FILE).exists() or not has_file(directory, INDEX_FILE):
        return read_header(contained_file(directory, _single_file(directory), directory))
    entries: dict[str, TensorEntry] = {}
    for shard, names in sorted(_names_by_shard(directory).items()):
        header = read_header(contained_file(directory, shard, index))
        for name in names:
            if name not in header:
                raise ModelLoadError(f"{directory / shard}: lacks {name!r:.120} of {INDEX_FILE}")
            entries[name] = header[name]
    return entries


def _single_file(directory: Path) -> str:
    if has_file(directory, SINGLE_FILE):
        return SINGLE_FILE
    files = sorted(path.name for path in directory.iterdir())
    pickles = [name for name in files if is_pickle(name)]
    if pickles:
        raise ModelLoadError(
            f"{directory / pickles[0]}: pickled weights can run code when read and are never "
            "loaded; convert them to safetensors (transformers: model.save_pretrained)"
        )
    raise ModelLoadError(f"{directory}: no {SINGLE_FILE}, {INDEX_FILE} or Orbax checkpoint in it")


def _names_by_shard(directory: Path) -> dict[str, list[str]]:
    """Tensor names of each shard that the index names."""
    index = directory / INDEX_FILE
    weight_map = read_json(directory, INDEX_FILE, _MAX_INDEX_BYTES).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelLoadError(f"{index}: has no weight_map")
    if not all(isinstance(shard, str) for shard in weight_map.values()):
        raise ModelLoadError(f"{index}: weight_map must map tensor names to file names")
    names: dict[str, list[str]] = defaultdict(list)
    for name, shard in weight_map.items():
        names[shard].append(name)
    return names
