"""Converts a model directory between safetensors and Orbax, keeping it loadable."""

import contextlib
import glob
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import jax

from jaxinfer.model.architecture import abstract_params
from jaxinfer.model.checkpoint import orbax_files as checkpoint
from jaxinfer.model.checkpoint.directory_files import (
    additional_templates,
    contained_file,
    has_file,
)
from jaxinfer.model.checkpoint.weights import load_params, save_params
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.hf_config import read_config_file

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
    """Write the model of ``source`` to ``destination`` in the other format: all of it or nothing.

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
        OSError: it can't be written, or its disk is too small.
    """
    if destination.exists() and (not destination.is_dir() or any(destination.iterdir())):
        raise ValueError(f"{destination}: exists and is not an empty directory")
    if destination.is_mount():  # nothing can be renamed to it
        raise ValueError(f"{destination}: is a mount point; give a directory in it")
    config = ModelConfig.from_directory(source)
    to = to or ("safetensors" if checkpoint.is_checkpoint(source) else "orbax")
    dtype = dtype or config.dtype
    with _written_beside(destination) as partial:
        _check_space(destination, config, dtype)
        params = load_params(source, config, dtype, progress=progress)
        if to == "safetensors":
            save_params(params, config, partial)
        else:
            checkpoint.save(params, partial)
        _copy_config(source, partial, dtype)
        for name in (*_COMPANIONS, *additional_templates(source).values()):
            if has_file(source, name):
                (partial / name).parent.mkdir(exist_ok=True)
                shutil.copyfile(contained_file(source, name, source), partial / name)
    return to


@contextlib.contextmanager
def _written_beside(destination: Path) -> Iterator[Path]:
    """A directory that takes the place of ``destination`` at the end of the block.

    If the block ends early, by Ctrl-C for example, ``destination`` is as it was before; leftovers
    of runs that were killed are removed.

    Raises:
        OSError: it can't be written; names ``destination`` where the system names nothing.
    """
    destination = destination.resolve()
    destination.parent.mkdir(parents=True, exist_ok=True)
    mark = f".{destination.name}.partial-"
    for leftover in destination.parent.glob(f"{glob.escape(mark)}*"):
        if not _is_running(leftover.name.removeprefix(mark)):
            shutil.rmtree(leftover)
    partial = destination.parent / f"{mark}{os.getpid()}"
    try:
        partial.mkdir()
        yield partial
        partial.replace(destination)
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(destination)) from None
    finally:
        if partial.exists():
            _remove(partial)


def _remove(directory: Path) -> None:
    """Remove a directory in which threads may still write for a moment.

    TensorStore's threads outlive the error that one of them caused, and make directories that are
    missing; so it has to stay away for half a second.
    """
    give_up = time.monotonic() + 10
    absent_since = time.monotonic()
    while time.monotonic() < min(give_up, absent_since + 0.5):
        if directory.exists():
            shutil.rmtree(directory, ignore_errors=True)
            absent_since = time.monotonic()
        time.sleep(0.02)


def _is_running(process_id: str) -> bool:
    """Whether there is such a process; another user's counts, what is no number does not."""
    try:
        os.kill(int(process_id), 0)
    except PermissionError:
        return True
    except (ProcessLookupError, ValueError, OverflowError):
        return False
    return True


def _check_space(destination: Path, config: ModelConfig, dtype: str) -> None:
    leaves = jax.tree.leaves(abstract_params(config, dtype))
    needed = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)
    free = shutil.disk_usage(destination.resolve().parent).free
    if needed > free:
        raise OSError(
            f"{destination}: no space left on the disk: the weights need {needed / 10**6:.1f} MB, "
            f"and {free / 10**6:.1f} MB are free"
        )


def _copy_config(source: Path, destination: Path, dtype: str) -> None:
    """Keep every key of the original config.json, so that other programs still find theirs."""
    mapping = dict(read_config_file(source / "config.json"))
    mapping.pop("auto_map", None)  # it names Python files, which are not copied
    key = "dtype" if "dtype" in mapping else "torch_dtype"
    text = json.dumps({**mapping, key: dtype}, indent=2, ensure_ascii=False)
    (destination / "config.json").write_text(text + "\n", encoding="utf-8")
