"""Describes a process's versions, arguments, weights and tokenizer, for processes to compare."""

import dataclasses
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jaxlib
import numpy as np
from jax.sharding import Mesh

from jaxinfer import __version__
from jaxinfer.config import EngineConfig
from jaxinfer.model.checkpoint import orbax_files as checkpoint
from jaxinfer.model.checkpoint.weight_files import tensor_entries
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.sharding import ShardingRules
from jaxinfer.model.text.tokenizer import Tokenizer

# Arguments that may differ: the places of files on each machine, and the output for people.
_LOCAL_FIELDS = (
    *("model", "tokenizer", "revision", "compilation_cache_dir", "kv_offloading_directory"),
    "show_progress",
)
_SAMPLES, _SAMPLE_BYTES = 8, 64
_SMALL_FILE = 1 << 20
_SMALL_LEAF = 1 << 16


def describe_environment() -> dict[str, Any]:
    """Versions and the number of processes."""
    return {
        "jaxinfer version": __version__,
        "jax version": jax.__version__,
        "jaxlib version": jaxlib.__version__,
        "num_processes": jax.process_count(),
    }


def describe_engine(
    config: EngineConfig, model_config: ModelConfig, mesh: Mesh, rules: ShardingRules
) -> dict[str, Any]:
    """Every argument that affects compilation or scheduling, by its name."""
    engine = dataclasses.asdict(config)
    model = dataclasses.asdict(model_config)
    return {
        **{name: value for name, value in engine.items() if name not in _LOCAL_FIELDS},
        **{f"model config's {name}": value for name, value in model.items()},
        "mesh": {str(axis): size for axis, size in mesh.shape.items()},
        "mesh devices": [device.id for device in mesh.devices.flat],
        "device kind": mesh.local_devices[0].device_kind,
        "rules": dataclasses.asdict(rules),
    }


def describe_model(
    directory: Path | None,
    params: Mapping[str, Any] | None,
    tokenizer: Tokenizer | None,
    eos_token_ids: tuple[int, ...],
    hooks: Mapping[str, Any],
) -> dict[str, Any]:
    """Weights and tokenizer as fingerprints, and the names of the user's own functions."""
    weights = params_fingerprint(params) if directory is None else file_fingerprint(directory)
    names = {
        name: None if hook is None else getattr(hook, "__qualname__", type(hook).__qualname__)
        for name, hook in hooks.items()
    }
    return {
        "weights": weights,
        "tokenizer": None if tokenizer is None else tokenizer.fingerprint(),
        "end-of-sequence ids": list(eos_token_ids),
        **names,
    }


def file_fingerprint(directory: Path) -> str:
    """A hash over names, shapes and samples of the values, so that no file is read whole."""
    digest = hashlib.sha256()
    if checkpoint.is_checkpoint(directory):
        root = directory / checkpoint.SUBDIRECTORY
        for file in sorted(path for path in root.rglob("*") if path.is_file()):
            size = file.stat().st_size
            digest.update(f"{file.relative_to(root)} {size}\n".encode())
            if size <= _SMALL_FILE:
                digest.update(file.read_bytes())
        return digest.hexdigest()[:16]
    for name, entry in sorted(tensor_entries(directory).items()):
        digest.update(f"{name} {entry.dtype} {entry.shape}\n".encode())
        last = max(entry.num_bytes - _SAMPLE_BYTES, 0)
        with entry.file.open("rb") as stream:
            for i in range(_SAMPLES):
                stream.seek(entry.offset + last * i // (_SAMPLES - 1))
                digest.update(stream.read(min(_SAMPLE_BYTES, entry.num_bytes)))
    return digest.hexdigest()[:16]


def params_fingerprint(params: Any) -> str:
    """A hash over paths, shapes and dtypes, and the values of small leaves that lie here whole."""
    digest = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        shape, dtype = getattr(leaf, "shape", None), getattr(leaf, "dtype", None)
        digest.update(f"{jax.tree_util.keystr(path)} {shape} {dtype}\n".encode())
        whole = not isinstance(leaf, jax.Array) or leaf.is_fully_replicated
        if whole and getattr(leaf, "size", _SMALL_LEAF) < _SMALL_LEAF:
            digest.update(np.ascontiguousarray(leaf).tobytes())
    return digest.hexdigest()[:16]
