"""Reads the header of a GGUF file: its metadata, and where its tensors lie, checked by its size.

The format, which ggml's repository describes: magic, version, the numbers of tensors and of
metadata; the metadata, each a key, a type and a value; of each tensor its name, shape, type and
offset; the tensors' bytes. Every count and length comes from a stranger: none is believed that the
rest of the file is too small for.
"""

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jaxinfer.errors import ModelLoadError
from jaxinfer.model.checkpoint.gguf.package import gguf

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?"}
_NUMBERS |= {10: "Q", 11: "q", 12: "d"}
_FLOAT32, _STRING, _ARRAY = 6, 8, 9
_LEAST_FIELD_BYTES = 8 + 4 + 1
_LEAST_TENSOR_BYTES = 8 + 4 + 8 + 4 + 8
_MOST_AXES = 4
_ALIGNMENT = "general.alignment"
TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K")
"""Names of the types of tensors that are read."""


@dataclass(frozen=True)
class GgufTensor:
    """Where one tensor lies, and what its bytes are.

    Attributes:
        shape: in elements, the last axis contiguous.
        type: one of `TYPES`.
        offset: of its first byte, from the start of the file.
        num_bytes: its size in the file.
    """

    name: str
    shape: tuple[int, ...]
    type: str
    offset: int
    num_bytes: int


@dataclass(frozen=True)
class GgufHeader:
    """What a file says of itself.

    Attributes:
        fields: metadata by key: numbers, texts, booleans, arrays of numbers and lists of texts.
    """

    file: Path
    fields: dict[str, Any]
    tensors: dict[str, GgufTensor]


def read_header(file: Path) -> GgufHeader:
    """Metadata and tensors of a file.

    Raises:
        ModelLoadError: the file is missing, cut short, of another kind, or its header is wrong.
        MissingPackageError: gguf is not installed.
    """
    gguf()
    try:
        with file.open("rb") as stream:
            head = stream.read(len(_MAGIC))
            if head != _MAGIC:
                raise ModelLoadError(f"{file}: not a GGUF file: it begins with {head!r}")
            with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _parse(file, _Cursor(data))
    except OSError as error:
        raise ModelLoadError(f"{file}: {error.strerror}") from None
    except _HeaderError as error:
        raise ModelLoadError(f"{file}: {error}") from None


class _HeaderError(Exception):
    """A fault of the header."""


class _Cursor:
    """Reads values in order, and none beyond the end."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self.size = len(data)
        self.place = len(_MAGIC)

    def take(self, count: int, what: str) -> bytes:
        start = self._advance(count, what)
        return self._data[start : self.place]

    def number(self, code: str, what: str) -> Any:
        start = self._advance(struct.calcsize("<" + code), what)
        return struct.unpack_from("<" + code, self._data, start)[0]

    def count(self, least_bytes: int, what: str) -> int:
        """A number of things that take so many bytes each."""
        count = self.number("Q", what)
        if count > (self.size - self.place) // least_bytes:
            raise _HeaderError(
                f"cut short, or damaged: {what} is {count}, more than its {self.size} bytes hold"
            )
        return count

    def text(self, what: str) -> str:
        data = self.take(self.count(1, f"the length of {what}"), what)
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            raise _HeaderError(f"{what} is not UTF-8 text") from None

    def _advance(self, count: int, what: str) -> int:
        start = self.place
        if count > self.size - start:
            raise _HeaderError(f"cut short: its {self.size} bytes end inside {what}")
        self.place = start + count
        return start


def _parse(file: Path, cursor: _Cursor) -> GgufHeader:
    version = cursor.number("I", "the version")
    if version and not version & 0xFFFF:
        raise _HeaderError(
            "a big-endian GGUF file; convert it to little-endian (gguf-convert-endian)"
        )
    if version not in _VERSIONS:
        raise _HeaderError(f"GGUF of version {version}; versions 2 and 3 are read")
    num_tensors = cursor.count(_LEAST_TENSOR_BYTES, "the number of tensors")
    num_fields = cursor.count(_LEAST_FIELD_BYTES, "the number of metadata")
    fields: dict[str, Any] = {}
    for _ in range(num_fields):
        key = cursor.text("a key of the metadata")
        if key in fields:
            raise _HeaderError(f"its metadata has {key!r:.100} twice")
        fields[key] = _value(cursor, cursor.number("I", "a type of the metadata"), f"{key!r:.100}")
    found = [_tensor(cursor) for _ in range(num_tensors)]
    alignment = fields.get(_ALIGNMENT, 32)
    if type(alignment) is not int or not 0 < alignment <= 1 << 20 or alignment % 8:
        raise _HeaderError(f"{_ALIGNMENT} is {alignment!r:.40}, not a multiple of 8")
    start = -(-cursor.place // alignment) * alignment
    tensors: dict[str, GgufTensor] = {}
    for name, shape, kind, offset in found:
        if name in tensors:
            raise _HeaderError(f"it has the tensor {name!r:.100} twice")
        tensors[name] = _placed(name, shape, kind, start + offset, cursor.size)
    return GgufHeader(file, fields, tensors)


def _value(cursor: _Cursor, kind: int, what: str) -> Any:
    if kind == _FLOAT32:  # 1e-05, rather than the number nearest to it
        return float(str(np.float32(cursor.number("f", what))))
    if kind in _NUMBERS:
        return cursor.number(_NUMBERS[kind], what)
    if kind == _STRING:
        return cursor.text(what)
    if kind != _ARRAY:
        raise _HeaderError(f"{what} of the metadata has the unknown type {kind}")
    item = cursor.number("I", what)
    if item == _STRING:
        count = cursor.count(8, f"the length of {what}")
        return [cursor.text(what) for _ in range(count)]
    if item not in _NUMBERS:
        raise _HeaderError(f"{what} of the metadata is an array of the type {item}")
    dtype = np.dtype(_NUMBERS[item]).newbyteorder("<")
    count = cursor.count(dtype.itemsize, f"the length of {what}")
    return np.frombuffer(cursor.take(count * dtype.itemsize, what), dtype)


def _tensor(cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    """Name, shape, number of the type, and offset in the data."""
    name = cursor.text("the name of a tensor")
    what = f"the description of tensor {name!r:.100}"
    num_axes = cursor.number("I", what)
    if not 0 < num_axes <= _MOST_AXES:
        raise _HeaderError(f"{what} has {num_axes} axes")
    shape = tuple(cursor.number("Q", what) for _ in range(num_axes))[::-1]
    return name, shape, cursor.number("I", what), cursor.number("Q", what)


def _placed(name: str, shape: tuple[int, ...], kind: int, offset: int, size: int) -> GgufTensor:
    """The tensor, if its type is known and its bytes are in the file."""
    package, what = gguf(), f"tensor {name!r:.100}"
    try:
        quantization = package.GGMLQuantizationType(kind)
    except ValueError:
        raise _HeaderError(f"{what} has the unknown type {kind}") from None
    if quantization.name not in TYPES:
        known = ", ".join(TYPES)
        raise _HeaderError(f"{what} has the type {quantization.name}; these are read: {known}")
    block, block_bytes = package.GGML_QUANT_SIZES[quantization]
    if not math.prod(shape) or shape[-1] % block:
        raise _HeaderError(f"{what} of shape {shape} is not made of blocks of {block}")
    num_bytes = math.prod(shape) // block * block_bytes
    if offset + num_bytes > size:
        raise _HeaderError(f"cut short: {size} bytes, but {what} ends at {offset + num_bytes}")
    return GgufTensor(name, shape, quantization.name, offset, num_bytes)
