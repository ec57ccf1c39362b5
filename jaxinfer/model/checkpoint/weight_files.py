"""Finds the weight files of a model directory and refuses any that lie outside it."""

import json
from pathlib import Path

from jaxinfer.errors import ModelLoadError
from jaxinfer.model.checkpoint.safetensors_file import TensorEntry, read_header

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
_PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_MAX_INDEX_BYTES = 64 << 20


def tensor_entries(directory: Path) -> dict[str, TensorEntry]:
    """Every tensor of a directory's safetensors file or shards, by its name in the file.

    Only headers are read.

    Raises:
        ModelLoadError: no safetensors, a missing or damaged shard, or one outside the directory.
    """
    index = directory / INDEX_FILE
    if (directory / SINGLE_FILE).exists() or not index.exists():
        return read_header(contained_file(directory, _single_file(directory), directory))
    entries: dict[str, TensorEntry] = {}
    weight_map = _weight_map(contained_file(directory, INDEX_FILE, directory))
    for shard in sorted(set(weight_map.values())):
        header = read_header(contained_file(directory, shard, index))
        for name in (name for name, file in weight_map.items() if file == shard):
            if name not in header:
                raise ModelLoadError(f"{directory / shard}: lacks {name!r:.120} of {INDEX_FILE}")
            entries[name] = header[name]
    return entries


def _single_file(directory: Path) -> str:
    if (directory / SINGLE_FILE).is_symlink() or (directory / SINGLE_FILE).exists():
        return SINGLE_FILE
    files = sorted(path.name for path in directory.iterdir())
    pickles = [name for name in files if name.endswith(_PICKLE_SUFFIXES)]
    if pickles:
        raise ModelLoadError(
            f"{directory / pickles[0]}: pickled weights can run code when read and are never "
            "loaded; convert them to safetensors (transformers: model.save_pretrained)"
        )
    raise ModelLoadError(f"{directory}: no {SINGLE_FILE}, {INDEX_FILE} or Orbax checkpoint in it")


def _weight_map(index: Path) -> dict[str, str]:
    try:
        if index.stat().st_size > _MAX_INDEX_BYTES:
            raise ModelLoadError(f"{index}: larger than 64 MiB")
        mapping = json.loads(index.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelLoadError(f"{index}: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise ModelLoadError(f"{index}: not JSON") from None
    weight_map = mapping.get("weight_map") if isinstance(mapping, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelLoadError(f"{index}: has no weight_map")
    if not all(isinstance(shard, str) for shard in weight_map.values()):
        raise ModelLoadError(f"{index}: weight_map must map tensor names to file names")
    return weight_map


def contained_file(directory: Path, name: str, named_by: Path) -> Path:
    """Path of a file of ``directory``, refused if it leads outside.

    A snapshot of the Hugging Face cache is made of links into the ``blobs`` directory beside it;
    only such links may leave it.

    Args:
        directory: of the model.
        name: relative path, possibly written by a stranger.
        named_by: where the name was found, for messages.

    Raises:
        ModelLoadError: the name or a link leads outside, or there is no regular file.
    """
    if not name or "\0" in name or Path(name).is_absolute() or ".." in Path(name).parts:
        raise ModelLoadError(f"{named_by}: names {name!r:.120}, which lies outside the directory")
    if name.endswith(_PICKLE_SUFFIXES):
        raise ModelLoadError(f"{named_by}: names {name!r:.120}; pickled weights are never loaded")
    file, root = directory / name, directory.resolve()
    try:
        target = file.resolve(strict=True)
    except FileNotFoundError:
        raise ModelLoadError(f"{file}: missing (named by {named_by.name})") from None
    except (OSError, RuntimeError) as error:
        raise ModelLoadError(f"{file}: {getattr(error, 'strerror', None) or error}") from None
    allowed = [root]
    if root.parent.name == "snapshots":
        allowed.append(root.parent.parent / "blobs")
    if not any(target.is_relative_to(place) for place in allowed):
        raise ModelLoadError(f"{file}: a link out of the model directory")
    if not target.is_file():
        raise ModelLoadError(f"{file}: not a regular file")
    return file
