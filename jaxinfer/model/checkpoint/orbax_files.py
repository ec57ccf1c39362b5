"""Orbax checkpoints of the parameter tree: written whole, restored directly into shardings."""

import contextlib
import functools
import json
import logging
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax

from jaxinfer.errors import ModelLoadError
from jaxinfer.model.checkpoint.parameter_names import flatten, unflatten
from jaxinfer.model.checkpoint.weight_files import SUBDIRECTORY as SUBDIRECTORY
from jaxinfer.model.checkpoint.weight_files import is_checkpoint as is_checkpoint

_METADATA_FILE = "_METADATA"
_STORE_MANIFEST = "manifest.ocdbt"


def save(params: Mapping[str, Any], directory: str | Path) -> None:
    """Write the tree to ``<directory>/orbax``, replacing one that is there.

    On several hosts every process calls it, each writing its own shards.
    """
    with _without_tracebacks(), _checkpointer() as checkpointer:
        checkpointer.save((Path(directory) / SUBDIRECTORY).absolute(), dict(params), force=True)


def restore(
    directory: str | Path, expected: Mapping[str, Any], as_stored: Collection[str] = ()
) -> dict[str, Any]:
    """Read ``<directory>/orbax`` into the dtypes and shardings of ``expected``.

    Args:
        expected: tree of ``modules.abstract_params``; leaves without sharding go to JAX's default
            device.
        as_stored: paths of leaves that keep the dtype of the file.

    Raises:
        ModelLoadError: the checkpoint is incomplete or damaged, or doesn't fit.
    """
    path = (Path(directory) / SUBDIRECTORY).absolute()
    _check_links(path)
    try:
        _check_storage(path)
        with _checkpointer() as checkpointer:
            stored = checkpointer.metadata(path).item_metadata
            leaves = {} if stored is None else dict(flatten(stored.tree))
            _check_fits(leaves, dict(flatten(expected)), path)
            wanted = dict(flatten(expected))
            for each in as_stored:
                wanted[each] = wanted[each].update(dtype=leaves[each].dtype)
            return checkpointer.restore(path, jax.tree.map(_placed, unflatten(wanted)))
    except ModelLoadError:
        raise
    except Exception as error:  # Orbax and TensorStore raise many kinds for a damaged file
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise ModelLoadError(f"{path}: damaged Orbax checkpoint ({lines[0]:.200})") from None


def _checkpointer() -> Any:
    import orbax.checkpoint as ocp

    return ocp.StandardCheckpointer()


@contextlib.contextmanager
def _without_tracebacks() -> Iterator[None]:
    """Keep threads of Orbax and TensorStore from printing what `save` raises, once for each array.

    After a failure TensorStore's threads still report to an event loop that is gone, at any time
    later; so that hook stays changed then, for this error alone.
    """
    logger, report = logging.getLogger("absl"), sys.unraisablehook
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    sys.unraisablehook = functools.partial(_report_unless_loop_closed, report)
    try:
        yield
        sys.unraisablehook = report
    finally:
        logger.setLevel(level)


def _report_unless_loop_closed(report: Callable[[Any], Any], what: Any) -> None:
    if str(what.exc_value) != "Event loop is closed":
        report(what)


def _placed(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    """The same leaf with a sharding: Orbax would otherwise use the one the file was saved with."""
    sharding = leaf.sharding or jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


def _check_links(path: Path) -> None:
    """Refuse links anywhere in the checkpoint, which could lead out of the directory, and pipes."""
    for file in [path, *path.rglob("*")]:
        if file.is_symlink():
            raise ModelLoadError(f"{file}: a link inside an Orbax checkpoint")
        if not file.is_file() and not file.is_dir():
            raise ModelLoadError(f"{file}: not a regular file")


def _check_storage(path: Path) -> None:
    """Find missing and truncated files before Orbax reads: it would fail in many tasks at once.

    Reads the index of Orbax's key-value store (OCDBT) and the last byte of every value in it.
    """
    import tensorstore

    metadata = json.loads((path / _METADATA_FILE).read_text(encoding="utf-8"))
    if not isinstance(metadata, dict):
        raise ModelLoadError(f"{path / _METADATA_FILE}: holds no JSON object")
    if not metadata.get("use_ocdbt", True):
        return  # one directory for each array, which Orbax checks by itself
    if not (path / _STORE_MANIFEST).exists():
        raise ModelLoadError(f"{path / _STORE_MANIFEST}: missing; damaged Orbax checkpoint")
    store = tensorstore.KvStore.open(
        {"driver": "ocdbt", "base": {"driver": "file", "path": f"{path}/"}}
    ).result()
    for key in store.list().result():
        if not store.read(key, byte_range=slice(-1, None)).result().value:
            # A data file that is gone reads as no bytes, not as an error; a chunk has some.
            raise ModelLoadError(f"{path}: {key.decode()} is lost; damaged Orbax checkpoint")


def _check_fits(stored: Mapping[str, Any], expected: Mapping[str, Any], path: Path) -> None:
    """Compare names and shapes before any array is read."""
    for name in [*expected, *stored]:
        if name not in stored:
            raise ModelLoadError(f"{path}: parameter {name!r} is missing")
        if name not in expected:
            raise ModelLoadError(f"{path}: parameter {name!r} is not in config.json's model")
        if tuple(stored[name].shape) != expected[name].shape:
            raise ModelLoadError(
                f"{path}: {name} has shape {tuple(stored[name].shape)}, config.json implies "
                f"{expected[name].shape}"
            )
