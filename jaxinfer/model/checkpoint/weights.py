"""Loads parameters from files straight onto devices, and saves them again."""

import functools
import json
import math
import operator
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jax.typing import DTypeLike

from jaxinfer.errors import ModelLoadError
from jaxinfer.model.architecture import abstract_params, activation_dtype
from jaxinfer.model.checkpoint import orbax_files as checkpoint
from jaxinfer.model.checkpoint.hub import resolve_model as resolve_model
from jaxinfer.model.checkpoint.parameter_names import flatten, tensor_name, unflatten
from jaxinfer.model.checkpoint.safetensors_file import TensorEntry, write_file
from jaxinfer.model.checkpoint.source_plan import FLOATS, Source, SourcePlan, check_plan
from jaxinfer.model.checkpoint.stack import Stack
from jaxinfer.model.checkpoint.weight_files import INDEX_FILE, SINGLE_FILE, tensor_entries
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.families.table import family_of
from jaxinfer.model.quantized.files import quantized_plan
from jaxinfer.model.quantized.kv_scales import without_kv_scales
from jaxinfer.model.quantized.mismatches import check_mismatches
from jaxinfer.model.quantized.params import quantize_weight
from jaxinfer.model.quantized.quantization import INPUT_SCALE, NODE, SCALE, Quantization, plain_path
from jaxinfer.model.quantized.saved import (
    HostTensor,
    joined,
    on_host,
    saved_name,
    saved_tensors,
)
from jaxinfer.model.sharding import ShardingRules

Progress = Callable[[int, int], None]
Changes = Mapping[str, Callable[[np.ndarray], np.ndarray]]
"""By path of a leaf of a plain tree: what its stored values become before they are converted."""
_MAX_SHARD_BYTES = 5 * 10**9
_ALIGNMENT = 64
_AHEAD = 4
"""Leaves that the host makes while another is sent: repacking takes longer than sending."""


def load_params(
    directory: str | Path,
    config: ModelConfig,
    dtype: DTypeLike,
    mesh: jax.sharding.Mesh | None = None,
    rules: ShardingRules | None = None,
    progress: Progress | None = None,
    beside: Collection[str] = (),
    changes: Changes = MappingProxyType({}),
) -> dict[str, Any]:
    """Read a model directory's weights, safetensors or Orbax, onto devices.

    Names, shapes and dtypes are checked against ``config`` from the files' headers before memory
    is taken. Files are memory-mapped and each device is sent only its slice, so the host holds at
    most a few leaves of its own at a time. Of several processes each reads only what its devices
    need.

    Args:
        directory: holds safetensors (one file or shards with an index) or an Orbax checkpoint.
        config: what the weights must fit.
        dtype: of every parameter; stored values are converted, rounding to nearest.
        mesh: devices to split over; JAX's default device if None.
        rules: which axis is split over which mesh axis.
        progress: called with (bytes read, bytes in all) after each tensor.
        beside: names of tensors that may be in the files beside the model's.
        changes: of plain weights; of stored quantized ones there must be none.

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
    form, family = config.quantization, family_of(config.model_type)
    plain = abstract_params(replace(config, quantization=None), dtype, mesh, rules)
    expected = plain if form is None else abstract_params(config, dtype, mesh, rules)
    described = dict(flatten(expected))
    quantize = _Quantizer(form, described) if form and form.stored == "plain" else None
    if checkpoint.is_checkpoint(directory):
        params = checkpoint.restore(directory, plain if quantize else expected, [*changes])
        params = _changed(params, changes, dict(flatten(plain))) if changes else params
        sound = {path: are_sound(path, leaf) for path, leaf in flatten(params)}
        where = f"{directory / checkpoint.SUBDIRECTORY}: "
        check_sound(sound, {path: where + saved_name(path, tensor_name) for path in sound})
        return quantize.whole(params) if quantize else params
    found = tensor_entries(directory)
    entries = {
        name: each
        for name, each in found.items()
        if not name.startswith(family.ignored) and name not in beside
    }
    entries = without_kv_scales(entries)
    leaves = dict(flatten(plain))
    plan = family.source_plan(config, {path: leaf.shape for path, leaf in leaves.items()}, entries)
    stored, of_plain = (None if quantize else form), plan
    if stored is not None:
        plan, leaves = quantized_plan(plan, stored, entries), described
    check_mismatches(of_plain, plan, stored, entries)
    check_plan(plan, entries, directory)
    plan |= {path: plan[path].followed_by(change) for path, change in changes.items()}
    return unflatten(read_leaves(plan, leaves, entries, progress, quantize))


def _changed(
    params: dict[str, Any], changes: Changes, described: Mapping[str, jax.ShapeDtypeStruct]
) -> dict[str, Any]:
    """A restored tree after the changes, one leaf at a time."""
    leaves = dict(flatten(params))
    params.clear()
    for path, change in changes.items():
        leaf = described[path]
        changed = np.asarray(change(on_host(leaves.pop(path))), leaf.dtype)
        leaves[path] = jax.device_put(changed, leaf.sharding)
    return unflatten({path: leaves[path] for path in described})


def read_leaves(
    plan: SourcePlan,
    described: Mapping[str, jax.ShapeDtypeStruct],
    entries: Mapping[str, TensorEntry],
    progress: Progress | None = None,
    quantize: "_Quantizer | None" = None,
) -> dict[str, jax.Array]:
    """Read the leaves of a checked plan onto devices, one after the other.

    What `quantize` takes is quantized there before the next one is read.

    Raises:
        ModelLoadError: a leaf holds NaN or infinity; names the tensor.
    """
    sources = {path: [entries[each.name] for each in plan[path].tensors] for path in described}
    total = sum(each.num_bytes for each in {each for own in sources.values() for each in own})
    read: set[TensorEntry] = set()
    leaves, sound = {}, {}
    makers = [functools.partial(_made, plan[path], sources[path]) for path in described]
    for (path, leaf), found in zip(described.items(), _ahead(makers), strict=True):
        array = _to_devices(plan[path], sources[path], found, leaf)
        sound[path] = are_sound(path, array)
        leaves |= {path: array} if quantize is None else quantize(path, array)
        read.update(sources[path])
        if progress is not None:
            progress(sum(each.num_bytes for each in read), total)
    where = {path: f"{sources[path][0].file}: {_named(plan[path])}" for path in plan}
    check_sound(sound, where)
    return leaves


def save_params(
    params: Mapping[str, Any],
    config: ModelConfig,
    directory: str | Path,
    beside: Mapping[str, np.ndarray] = MappingProxyType({}),
) -> None:
    """Write ``config.json`` and safetensors that both transformers and ``load_params`` read.

    Weights above 5 GB are split into shards with an index. One tensor at a time is held on the
    host, gathered from its devices.

    Args:
        params: the tree; its leaves' dtype is kept.
        config: written as config.json with that dtype.
        directory: created if needed; weights saved there before are replaced.
        beside: further tensors, by name.

    Raises:
        TypeError: a leaf's dtype is not float32, bfloat16 or float16, nor that of its format.
        ValueError: the directory holds an Orbax checkpoint, which loading would prefer; or some
            leaves are quantized, and others by ``config``.
    """
    directory = Path(directory)
    if checkpoint.is_checkpoint(directory):
        raise ValueError(f"{directory}: holds an Orbax checkpoint; save to another directory")
    leaves = {**_tensors(params, config), **beside}
    directory.mkdir(parents=True, exist_ok=True)
    shards = _shards(leaves)
    files = [SINGLE_FILE]
    if len(shards) > 1:
        files = [f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors" for i in range(len(shards))]
    for file, shard in zip(files, shards, strict=True):
        write_file(directory / file, ((name, on_host(each)) for name, each in shard.items()), shard)
    (directory / (INDEX_FILE if len(shards) == 1 else SINGLE_FILE)).unlink(missing_ok=True)
    if len(shards) > 1:
        index = {
            "metadata": {"total_size": sum(map(_num_bytes, leaves.values()))},
            "weight_map": {
                name: file for file, shard in zip(files, shards, strict=True) for name in shard
            },
        }
        _write_json(directory / INDEX_FILE, index)
    dtype = activation_dtype(params).name
    _write_json(directory / "config.json", {**config.to_hf(), "torch_dtype": dtype})


@jax.jit
def is_finite(x: jax.Array) -> jax.Array:
    """Whether every element is a finite number, computed where the array lies."""
    return jnp.isfinite(x).all()


@jax.jit
def is_nonzero(x: jax.Array) -> jax.Array:
    """Whether every element is finite and not zero; some programs write negative scales."""
    return (jnp.isfinite(x) & (x != 0)).all()


@jax.jit
def is_positive(x: jax.Array) -> jax.Array:
    """Whether every element is a finite number above zero."""
    return (jnp.isfinite(x) & (x > 0)).all()


_FINITE = (is_finite, "NaN or infinity")
_SOUND = {
    SCALE: (is_nonzero, "scales that are zero or not finite"),
    INPUT_SCALE: (is_positive, "a scale that is no positive number"),
}
"""By the name of an array in a node: what it must be, and what an error calls it otherwise."""


def are_sound(path: str, leaf: jax.Array) -> list[jax.Array]:
    """Whether a leaf is sound, part by part on this process's devices: finite, or a good scale.

    Nothing is reduced over processes: while they read files, one may be ahead of the others.
    """
    check, _ = _SOUND.get(path.rpartition(".")[2], _FINITE)
    if leaf.is_fully_addressable:
        return [check(leaf)]
    flags = _sound_shards(leaf, leaf.sharding, check)
    return [shard.data for shard in flags.addressable_shards]


@functools.partial(jax.jit, static_argnums=(1, 2))
def _sound_shards(
    x: jax.Array, sharding: NamedSharding, check: Callable[[jax.Array], jax.Array]
) -> jax.Array:
    """Bool ``[devices]``: whether each device's part is sound."""
    return jax.shard_map(
        lambda part: check(part)[None],
        mesh=sharding.mesh,
        in_specs=sharding.spec,
        out_specs=PartitionSpec(sharding.mesh.axis_names),
    )(x)


def check_sound(sound: Mapping[str, list[jax.Array]], where: Mapping[str, str]) -> None:
    """Raise ModelLoadError for the first parameter that is not sound, naming file and tensor."""
    for path, ok in jax.device_get(dict(sound)).items():
        if not all(ok):
            _, what = _SOUND.get(path.rpartition(".")[2], _FINITE)
            raise ModelLoadError(f"{where[path]} holds {what}")


def _named(source: Source) -> str:
    """The tensor of a leaf, or the first of several, for a message."""
    first, *others = (each.name for each in source.tensors)
    return f"{first}, or one of {len(others)} tensors beside it," if others else first


class _Quantizer:
    """Makes nodes of plain projections on their devices, by one program for each shape.

    Args:
        form: of the nodes.
        described: the arrays of the tree by path.
    """

    def __init__(self, form: Quantization, described: Mapping[str, jax.ShapeDtypeStruct]) -> None:
        self._form, self._described = form, described

    def __call__(self, path: str, leaf: jax.Array) -> dict[str, jax.Array]:
        """The arrays by path that stand for the plain one at a path."""
        if not self._form.takes(path):
            return {path: leaf}
        paths = {name: f"{path}.{name}" for name in NODE if f"{path}.{name}" in self._described}
        shardings = tuple((name, self._described[each].sharding) for name, each in paths.items())
        node = jax.block_until_ready(_quantizing(self._form, shardings)(leaf))
        return {paths[name]: array for name, array in node.items()}

    def whole(self, params: dict[str, Any]) -> dict[str, Any]:
        """A plain tree with nodes; each plain leaf is given up once its node is there."""
        leaves, made = dict(flatten(params)), {}
        params.clear()
        for path in list(leaves):
            made |= self(path, leaves.pop(path))
        return unflatten(made)


@functools.lru_cache(maxsize=64)
def _quantizing(form: Quantization, shardings: tuple[tuple[str, Any], ...]) -> Any:
    return jax.jit(lambda weight: quantize_weight(weight, form), out_shardings=dict(shardings))


def _made(source: Source, entries: Sequence[TensorEntry]) -> Any:
    """A leaf on the host, of which devices take slices: mostly a view of its file."""
    try:
        return source.made_of([entry.mapped() for entry in entries])
    except ModelLoadError as error:
        raise ModelLoadError(f"{entries[0].file}: {error}") from None


def _ahead[Made](makers: Iterable[Callable[[], Made]]) -> Iterator[Made]:
    """What makers return, in order; threads are at work on a few behind the one that is yielded."""
    with ThreadPoolExecutor(_AHEAD) as pool:
        waiting: deque[Future[Made]] = deque()
        for make in makers:
            waiting.append(pool.submit(make))
            if len(waiting) > _AHEAD:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _to_devices(
    source: Source,
    entries: Sequence[TensorEntry],
    found: Any,
    leaf: jax.ShapeDtypeStruct,
) -> jax.Array:
    """Send one leaf to its devices and wait, so that host copies don't pile up."""
    if found.shape != leaf.shape:
        names = ", ".join(each.name for each in source.tensors)
        raise ModelLoadError(f"{entries[0].file}: {names} became {found.shape}, not {leaf.shape}")
    convert = _own_copy if found.dtype != leaf.dtype or _on_cpu(leaf) else np.ascontiguousarray
    if leaf.sharding is None:
        return jax.block_until_ready(jax.device_put(convert(found, leaf.dtype)))
    array = jax.make_array_from_callback(
        leaf.shape, leaf.sharding, lambda index: convert(_part(found, index), leaf.dtype)
    )
    return jax.block_until_ready(array)


def _part(found: Any, index: Any) -> Any:
    """A device's slice, still a view; of a scalar an array, too."""
    part = found[index]
    return part if isinstance(part, Stack) else np.asarray(part)


def _on_cpu(leaf: jax.ShapeDtypeStruct) -> bool:
    if leaf.sharding is None:
        return jax.default_backend() == "cpu" or jax.config.jax_default_device is not None
    return next(iter(leaf.sharding.device_set)).platform == "cpu"


def _own_copy(view: np.ndarray | Stack, dtype: np.dtype) -> np.ndarray:
    """The values of ``view`` in ``dtype`` and in memory of our own.

    On CPU, JAX keeps a host buffer that is aligned to 64 bytes instead of copying it. This one
    always is, which saves the copy; and a mapped file, which must not become a parameter because
    it can change or shrink later, never is handed over.
    """
    size = math.prod(view.shape) * np.dtype(dtype).itemsize
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    copy = memory[start : start + size].view(dtype).reshape(view.shape)
    with np.errstate(over="ignore", invalid="ignore"):  # check_sound reports what overflowed
        if isinstance(view, Stack):
            for target, array in zip(copy, view.arrays, strict=True):
                np.copyto(target, array, casting="unsafe")
        else:
            np.copyto(copy, view, casting="unsafe")
    return copy


def _tensors(params: Mapping[str, Any], config: ModelConfig) -> dict[str, Any]:
    """What the files hold, by name; checked against the config that is written beside them."""
    leaves, tensors = dict(flatten(params)), {}
    family = family_of(config.to_hf()["model_type"])  # some are saved as another one
    named = family.tensor_name
    for path, leaf in leaves.items():
        plain = plain_path(path)
        wanted = config.quantization is not None and config.quantization.takes(plain)
        if wanted != (plain != path):
            raise ValueError(
                f"params have {plain} {'plain' if wanted else 'quantized'}, which config's "
                f"quantization, {config.quantization}, has not"
            )
        if wanted:
            tensors |= saved_tensors(path, leaf, named)
            continue
        if str(leaf.dtype) not in FLOATS:
            known = ", ".join(FLOATS)
            raise TypeError(f"{named(path)}: can't save dtype {leaf.dtype}; supported: {known}")
        tensors[named(path)] = leaf
    tensors = _numbered(tensors, family.stacked) if family.stacked else tensors
    return _fused(tensors, family.fused)


def _numbered(tensors: Mapping[str, Any], module: str) -> dict[str, Any]:
    """The tensors with stacks apart, of modules of this name; each part is copied when written."""
    part, found = f".{module}.", {}
    for name, leaf in tensors.items():
        if part not in name:
            found[name] = leaf
            continue
        for i in range(leaf.shape[0]):
            make = functools.partial(operator.getitem, leaf, i)
            tensor = HostTensor((), leaf.shape[1:], leaf.dtype, lambda make=make: on_host(make()))
            found[name.replace(part, f"{part}{i}.")] = tensor
    return found


def _fused(tensors: dict[str, Any], fused: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
    """The tensors with those joined that the family's files hold as one, in order of names."""
    for whole, parts in fused.items():
        first = f".{parts[0]}."
        for name in [each for each in tensors if first in each]:
            rows = tuple(tensors.pop(name.replace(first, f".{part}.")) for part in parts)
            tensors[name.replace(first, f".{whole}.")] = joined(name, rows)
    return dict(sorted(tensors.items())) if fused else tensors


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
