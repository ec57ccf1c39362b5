"""Loads parameters from files straight onto devices, and saves them again."""

import functools
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jax.typing import DTypeLike

from jaxinfer.errors import ModelLoadError
from jaxinfer.model.architecture import abstract_params
from jaxinfer.model.checkpoint import orbax_files as checkpoint
from jaxinfer.model.checkpoint.hub import resolve_model as resolve_model
from jaxinfer.model.checkpoint.parameter_names import flatten, tensor_name, unflatten
from jaxinfer.model.checkpoint.safetensors_file import TensorEntry, write_file
from jaxinfer.model.checkpoint.weight_files import INDEX_FILE, SINGLE_FILE, tensor_entries
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.families.family import family_of
from jaxinfer.model.sharding import ShardingRules

Progress = Callable[[int, int], None]
_MAX_SHARD_BYTES = 5 * 10**9
_ALIGNMENT = 64


def load_params(
    directory: str | Path,
    config: ModelConfig,
    dtype: DTypeLike,
    mesh: jax.sharding.Mesh | None = None,
    rules: ShardingRules | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Read a model directory's weights, safetensors or Orbax, onto devices.

    Names, shapes and sizes are checked against ``config`` from the files' headers before memory is
    taken. Files are memory-mapped and each device is sent only its slice, so the host holds at
    most one tensor of its own at a time. Of several processes each reads only what its devices
    need.

    Args:
        directory: holds safetensors (one file or shards with an index) or an Orbax checkpoint.
        config: what the weights must fit.
        dtype: of every parameter; stored values are converted, rounding to nearest.
        mesh: devices to split over; JAX's default device if None.
        rules: which axis is split over which mesh axis.
        progress: called with (bytes read, bytes in all) after each tensor.

    Returns:
        The tree of ``modules.abstract_params``.

    Raises:
        ModelLoadError: a file is missing, damaged, foreign, doesn't fit ``config``, or holds NaN or
            infinity; one line that names it.
        ValueError: the mesh doesn't divide the model.
    """
    directory = Path(directory)
    if not directory.is_dir():
        raise ModelLoadError(f"{directory}: no such directory")
    expected = abstract_params(config, dtype, mesh, rules)
    if checkpoint.is_checkpoint(directory):
        params = checkpoint.restore(directory, expected)
        finite = {path: are_finite(leaf) for path, leaf in flatten(params)}
        check_finite(finite, dict.fromkeys(finite, str(directory / checkpoint.SUBDIRECTORY)))
        return params
    named = family_of(config.model_type).tensor_name
    leaves_by_name = {named(path): (path, leaf) for path, leaf in flatten(expected)}
    entries = _match(tensor_entries(directory), leaves_by_name, directory)
    total = sum(entry.num_bytes for entry in entries.values())
    done, leaves, finite = 0, {}, {}
    for path, leaf in flatten(expected):
        leaves[path] = _to_devices(entries[path], leaf)
        finite[path] = are_finite(leaves[path])
        done += entries[path].num_bytes
        if progress is not None:
            progress(done, total)
    check_finite(finite, {path: str(entry.file) for path, entry in entries.items()})
    return unflatten(leaves)


def save_params(params: Mapping[str, Any], config: ModelConfig, directory: str | Path) -> None:
    """Write ``config.json`` and safetensors that both transformers and ``load_params`` read.

    Weights above 5 GB are split into shards with an index. One tensor at a time is held on the
    host, gathered from its devices.

    Args:
        params: the tree; its leaves' dtype is kept.
        config: written as config.json with that dtype.
        directory: created if needed; weights saved there before are replaced.

    Raises:
        TypeError: a leaf's dtype is not float32, bfloat16 or float16.
        ValueError: the directory holds an Orbax checkpoint, which loading would prefer.
    """
    directory = Path(directory)
    if checkpoint.is_checkpoint(directory):
        raise ValueError(f"{directory}: holds an Orbax checkpoint; save to another directory")
    directory.mkdir(parents=True, exist_ok=True)
    named = family_of(config.model_type).tensor_name
    leaves = {named(path): leaf for path, leaf in flatten(params)}
    shards = _shards(leaves)
    files = [SINGLE_FILE]
    if len(shards) > 1:
        files = [f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors" for i in range(len(shards))]
    for file, shard in zip(files, shards, strict=True):
        on_host = ((name, jax.device_get(leaf)) for name, leaf in shard.items())
        write_file(directory / file, on_host, shard)
    (directory / (INDEX_FILE if len(shards) == 1 else SINGLE_FILE)).unlink(missing_ok=True)
    if len(shards) > 1:
        index = {
            "metadata": {"total_size": sum(map(_num_bytes, leaves.values()))},
            "weight_map": {
                name: file for file, shard in zip(files, shards, strict=True) for name in shard
            },
        }
        _write_json(directory / INDEX_FILE, index)
    dtype = str(next(iter(leaves.values())).dtype)
    _write_json(directory / "config.json", {**config.to_hf(), "torch_dtype": dtype})


@jax.jit
def is_finite(x: jax.Array) -> jax.Array:
    """Whether every element is a finite number, computed where the array lies."""
    return jnp.isfinite(x).all()


def are_finite(leaf: jax.Array) -> list[jax.Array]:
    """`is_finite` of the part on this process's devices.

    Nothing is reduced over processes: while they read files, one may be ahead of the others.
    """
    if leaf.is_fully_addressable:
        return [is_finite(leaf)]
    flags = _finite_shards(leaf, leaf.sharding)
    return [shard.data for shard in flags.addressable_shards]


@functools.partial(jax.jit, static_argnums=1)
def _finite_shards(x: jax.Array, sharding: NamedSharding) -> jax.Array:
    """Bool ``[devices]``: whether each device's part is finite."""
    return jax.shard_map(
        lambda part: jnp.isfinite(part).all()[None],
        mesh=sharding.mesh,
        in_specs=sharding.spec,
        out_specs=PartitionSpec(sharding.mesh.axis_names),
    )(x)


def check_finite(finite: Mapping[str, list[jax.Array]], files: Mapping[str, str]) -> None:
    """Raise for the first parameter that is not finite.

    Args:
        finite: ``are_finite`` of each parameter, by path.
        files: where each came from, for the message.

    Raises:
        ModelLoadError: names the file and the parameter.
    """
    for path, ok in jax.device_get(dict(finite)).items():
        if not all(ok):
            raise ModelLoadError(f"{files[path]}: {tensor_name(path)} holds NaN or infinity")


def _match(
    entries: Mapping[str, TensorEntry],
    expected: Mapping[str, tuple[str, Any]],
    directory: Path,
) -> dict[str, TensorEntry]:
    """Give every expected parameter its tensor; complain of missing, foreign or misshapen ones.

    Args:
        entries: of the files, by name.
        expected: path and description of each parameter, by its tensor's name.
        directory: for messages.
    """
    if "embed_tokens.weight" in entries:  # saved from the backbone alone, without its prefix
        entries = {f"model.{name}": entry for name, entry in entries.items()}
    missing = [name for name in expected if name not in entries]
    if missing:
        raise ModelLoadError(
            f"{directory}: {len(missing)} tensors are missing, the first is {missing[0]!r}"
        )
    for name, entry in entries.items():
        # A tied model's file may repeat the embedding as lm_head; old ones store RoPE's constants.
        if name not in expected and name != "lm_head.weight" and "rotary_emb" not in name:
            raise ModelLoadError(
                f"{entry.file}: tensor {name!r:.120} is not in config.json's model"
            )
    for name, (_, leaf) in expected.items():
        entry = entries[name]
        if entry.shape != leaf.shape:
            raise ModelLoadError(
                f"{entry.file}: {name} has shape {entry.shape}, config.json implies {leaf.shape}"
            )
    return {path: entries[name] for name, (path, _) in expected.items()}


def _to_devices(entry: TensorEntry, leaf: jax.ShapeDtypeStruct) -> jax.Array:
    """Send one tensor to its devices and wait, so that host copies don't pile up."""
    mapped = entry.mapped()
    convert = _own_copy if mapped.dtype != leaf.dtype or _on_cpu(leaf) else np.ascontiguousarray
    if leaf.sharding is None:
        return jax.block_until_ready(jax.device_put(convert(mapped, leaf.dtype)))
    array = jax.make_array_from_callback(
        leaf.shape, leaf.sharding, lambda index: convert(mapped[index], leaf.dtype)
    )
    return jax.block_until_ready(array)


def _on_cpu(leaf: jax.ShapeDtypeStruct) -> bool:
    if leaf.sharding is None:
        return jax.default_backend() == "cpu" or jax.config.jax_default_device is not None
    return next(iter(leaf.sharding.device_set)).platform == "cpu"


def _own_copy(view: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The values of ``view`` in ``dtype`` and in memory of our own.

    On CPU, JAX keeps a host buffer that is aligned to 64 bytes instead of copying it. This one
    always is, which saves the copy; and a mapped file, which must not become a parameter because
    it can change or shrink later, never is handed over.
    """
    size = math.prod(view.shape) * np.dtype(dtype).itemsize
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    copy = memory[start : start + size].view(dtype).reshape(view.shape)
    with np.errstate(over="ignore", invalid="ignore"):  # check_finite reports what overflowed
        np.copyto(copy, view, casting="unsafe")
    return copy


def _shards(leaves: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Leaves in order, cut so that no shard exceeds the limit unless a single tensor does."""
    shards: list[dict[str, Any]] = [{}]
    room = _MAX_SHARD_BYTES
    for name, leaf in leaves.items():
        size = _num_bytes(leaf)
        if shards[-1] and size > room:
            shards.append({})
            room = _MAX_SHARD_BYTES
        shards[-1][name] = leaf
        room -= size
    return shards


def _num_bytes(leaf: Any) -> int:
    return math.prod(leaf.shape) * np.dtype(leaf.dtype).itemsize


def _write_json(file: Path, value: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
