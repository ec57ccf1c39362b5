"""Reads and writes one safetensors file: a checked header, then tensors straight from the map.

The format (https://github.com/huggingface/safetensors): 8 bytes of header length, a JSON header
``{name: {dtype, shape, data_offsets}}``, then the bytes. The header alone decides whether a file is
accepted, so a bad file is refused before any memory is taken for it.
"""

import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from jaxinfer.errors import ModelLoadError

_DTYPES = {
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "I8": np.dtype(np.int8),
    "U8": np.dtype(np.uint8),
    "I32": np.dtype(np.int32),
    "I64": np.dtype(np.int64),
    "BOOL": np.dtype(np.bool_),
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_LENGTH_BYTES = 8
_MAX_HEADER_BYTES = 100_000_000  # the reference implementation's limit
_MAX_AXES = 16
_LARGEST_SIZE = 2**128  # an int of thousands of digits can't be written into a message


@dataclass(frozen=True)
class TensorEntry:
    """Where one tensor lies.

    Attributes:
        dtype: NumPy's, or one of `ml_dtypes`.
        offset: of its first byte, from the start of the file.
    """

    file: Path
    dtype: np.dtype
    shape: tuple[int, ...]
    offset: int

    @property
    def num_bytes(self) -> int:
        """Size in the file."""
        return math.prod(self.shape) * self.dtype.itemsize

    def mapped(self) -> np.ndarray:
        """The tensor as a read-only view of the file; pages are read when they are touched."""
        if not math.prod(self.shape):
            return np.zeros(self.shape, self.dtype)
        return np.memmap(self.file, self.dtype, mode="r", offset=self.offset, shape=self.shape)


def read_header(file: Path) -> dict[str, TensorEntry]:
    """Entries of every tensor in ``file``, checked against the file's size.

    Raises:
        ModelLoadError: the file is missing, truncated, of another kind, or its header is wrong.
    """
    try:
        with file.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            prefix = stream.read(_LENGTH_BYTES)
            length = int.from_bytes(prefix, "little")
            if length > _MAX_HEADER_BYTES or len(prefix) < _LENGTH_BYTES:
                raise ModelLoadError(f"{file}: {_what_else(prefix + stream.read(64), size)}")
            header = stream.read(length)
    except OSError as error:
        raise ModelLoadError(f"{file}: {error.strerror}") from None
    if len(header) < length:
        raise ModelLoadError(f"{file}: truncated: {size} bytes end inside the header")
    data_start = _LENGTH_BYTES + length
    entries = _parse(header, file)
    return {
        name: _entry(name, fields, file, data_start, size)
        for name, fields in entries.items()
        if name != "__metadata__"
    }


def write_file(file: Path, tensors: Iterable[tuple[str, Any]], shapes: Mapping[str, Any]) -> None:
    """Write tensors one at a time, so that host memory never holds more than one.

    Args:
        file: replaced only once everything is written.
        tensors: name and anything ``np.asarray`` takes, in the order of ``shapes``.
        shapes: name to anything with ``shape`` and ``dtype``.

    Raises:
        TypeError: a dtype that the format's readers here don't take.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, leaf in shapes.items():
        dtype = np.dtype(leaf.dtype)
        if dtype not in _NAMES:
            raise TypeError(f"{name}: can't save dtype {dtype}; supported: {', '.join(_names())}")
        end = offset + math.prod(leaf.shape) * dtype.itemsize
        header[name] = {
            "dtype": _NAMES[dtype],
            "shape": list(leaf.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _LENGTH_BYTES)
    partial = file.with_name(file.name + ".partial")
    with partial.open("wb") as stream:
        stream.write(len(text).to_bytes(_LENGTH_BYTES, "little") + text)
        for _, tensor in tensors:
            stream.write(np.ascontiguousarray(tensor).view(np.uint8).reshape(-1).data)
    partial.replace(file)


def _parse(header: bytes, file: Path) -> Mapping[str, Any]:
    try:
        entries = json.loads(header)
    except (ValueError, RecursionError):
        entries = None
    if not isinstance(entries, dict):
        raise ModelLoadError(f"{file}: not a safetensors file (its header is not a JSON object)")
    return entries


def _entry(name: str, fields: object, file: Path, data_start: int, size: int) -> TensorEntry:
    """Check one header entry; every number in it comes from a stranger."""
    where = f"{file}: tensor {name!r:.120}"
    if not isinstance(fields, dict):
        raise ModelLoadError(f"{where} has no description")
    shape, offsets = _sizes(fields.get("shape")), _sizes(fields.get("data_offsets"))
    if shape is None or offsets is None or len(offsets) != 2:
        raise ModelLoadError(f"{where} has a malformed shape or data_offsets")
    dtype = _DTYPES.get(str(fields.get("dtype")))
    if dtype is None:
        raise ModelLoadError(
            f"{where} has dtype {fields.get('dtype')!s:.20}; supported: {', '.join(_names())}"
        )
    begin, end = offsets
    if end - begin != math.prod(shape) * dtype.itemsize:
        raise ModelLoadError(
            f"{where} of shape {shape!r:.80} does not fill its {end - begin} bytes"
        )
    if data_start + end > size:
        raise ModelLoadError(
            f"{file}: truncated: {size} bytes, but tensor {name!r:.120} ends at {data_start + end}"
        )
    return TensorEntry(file, dtype, tuple(shape), data_start + begin)


def _sizes(value: Any) -> list[int] | None:
    """``value`` if it is a short list of sizes, whose product is quickly computed, else None."""
    if not isinstance(value, list) or len(value) > _MAX_AXES:
        return None
    are_sizes = all(type(number) is int and 0 <= number < _LARGEST_SIZE for number in value)
    return value if are_sizes else None


def _what_else(head: bytes, size: int) -> str:
    """Name what commonly lies where a safetensors file should be."""
    if not size:
        return "empty file"
    if head.startswith(b"version https://git-lfs"):
        return "a git-LFS pointer, not the weights; fetch them with `git lfs pull`"
    if head.lstrip().lower().startswith((b"<!doctype", b"<html", b"<?xml")):
        return "a web page, not the weights; the download went wrong"
    if head.startswith((b"PK\x03\x04", b"\x80\x02", b"\x80\x04")):
        return "a pickled PyTorch file, which can run code when read; convert it to safetensors"
    if size < _LENGTH_BYTES:
        return f"truncated: {size} bytes"
    return "not a safetensors file (impossible header length)"


def _names() -> list[str]:
    return [str(dtype) for dtype in _NAMES]
