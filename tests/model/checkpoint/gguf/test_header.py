"""A bad GGUF file is refused in one line, before memory is taken for what it claims."""

import math
import struct
import tracemalloc

import numpy as np
import pytest

from jaxinfer.errors import ModelLoadError
from jaxinfer.model.checkpoint.gguf.header import read_header
from tests.model.checkpoint.gguf import files

HUGE = 2**62


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def field(key: str, kind: int, data: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + data


def tensor(name="t", shape=(4,), kind=0, offset=0) -> bytes:
    axes = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return text(name) + axes + struct.pack("<IQ", kind, offset)


def file(*parts: bytes, tensors=(), version=3, counts=None, data=bytes(64)) -> bytes:
    counts = counts or (len(tensors), len(parts))
    head = b"GGUF" + struct.pack("<IQQ", version, *counts) + b"".join([*parts, *tensors])
    return head + bytes(-len(head) % 32) + data


NAME = field("general.name", 8, text("x"))


def refusal(path, content: bytes) -> str:
    path.write_bytes(content)
    with pytest.raises(ModelLoadError) as caught:
        read_header(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_values_of_every_type_are_read(tmp_path):
    files.gguf()
    numbers = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q"}
    numbers |= {12: "d"}
    parts = [field(f"n{kind}", kind, struct.pack(f"<{code}", 1)) for kind, code in numbers.items()]
    parts.append(field("eps", 6, struct.pack("<f", 1e-5)))
    parts.append(field("texts", 9, struct.pack("<IQ", 8, 2) + text("a") + text("é")))
    parts.append(field("array", 9, struct.pack("<IQ3i", 5, 3, 1, -2, 3)))
    (tmp_path / "x").write_bytes(file(*parts, tensors=[tensor(shape=(4, 2))]))
    header = read_header(tmp_path / "x")
    assert all(header.fields[f"n{kind}"] == 1 for kind in numbers)
    assert header.fields["n7"] is True
    assert header.fields["eps"] == 1e-5
    assert header.fields["texts"] == ["a", "é"]
    assert header.fields["array"].tolist() == [1, -2, 3]
    assert header.tensors["t"].shape == (2, 4)


BAD = {
    "empty": (b"", "not a GGUF file"),
    "magic": (b"GGML" + bytes(60), "not a GGUF file: it begins with b'GGML'"),
    "safetensors": (b"\x10\0\0\0\0\0\0\0{}", "not a GGUF file"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "a big-endian GGUF file"),
    "version 1": (file(version=1), "GGUF of version 1; versions 2 and 3 are read"),
    "version": (file(version=77), "GGUF of version 77"),
    "no counts": (b"GGUF\3\0\0\0", "cut short"),
    "many tensors": (file(counts=(HUGE, 0)), f"the number of tensors is {HUGE}"),
    "many metadata": (file(counts=(0, HUGE)), f"the number of metadata is {HUGE}"),
    "long key": (file(struct.pack("<Q", HUGE)), "the length of a key"),
    "long text": (file(field("k", 8, struct.pack("<Q", HUGE))), "the length of 'k'"),
    "long array": (file(field("k", 9, struct.pack("<IQ", 4, HUGE))), "the length of 'k' is"),
    "many texts": (file(field("k", 9, struct.pack("<IQ", 8, HUGE))), "the length of 'k' is"),
    "nested array": (file(field("k", 9, struct.pack("<IQ", 9, 1))), "an array of the type 9"),
    "unknown value": (file(field("k", 99, b"")), "'k' of the metadata has the unknown type 99"),
    "not UTF-8": (file(field("k", 8, struct.pack("<Q", 1) + b"\xff")), "'k' is not UTF-8"),
    "key twice": (file(NAME, NAME), "its metadata has 'general.name' twice"),
    "alignment": (file(field("general.alignment", 4, bytes(4))), "general.alignment is 0"),
    "tensor twice": (file(tensors=[tensor()] * 2), "the tensor 't' twice"),
    "unknown type": (file(tensors=[tensor(kind=250)]), "tensor 't' has the unknown type 250"),
    "other type": (file(tensors=[tensor(kind=16, shape=(256,))]), "has the type IQ2_XXS"),
    "integers": (file(tensors=[tensor(kind=24)]), "has the type I8; these are read: F32, F16"),
    "no axes": (file(tensors=[tensor(shape=())]), "has 0 axes"),
    "many axes": (file(tensors=[tensor(shape=(1,) * 5)]), "has 5 axes"),
    "empty tensor": (file(tensors=[tensor(shape=(4, 0))]), "is not made of blocks"),
    "half a block": (file(tensors=[tensor(kind=2, shape=(33,))]), "not made of blocks of 32"),
    "huge tensor": (file(tensors=[tensor(shape=(HUGE, HUGE))]), "cut short: "),
    "far tensor": (file(tensors=[tensor(offset=HUGE)]), "but tensor 't' ends at"),
    "cut tensor": (file(tensors=[tensor()], data=bytes(15)), "cut short: "),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_named_in_one_line_and_little_memory_is_taken(name, tmp_path):
    files.gguf()
    content, cause = BAD[name]
    tracemalloc.start()
    try:
        assert cause in refusal(tmp_path / "x.gguf", content)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_every_cut_of_a_file_is_refused(tmp_path):
    texts = field("texts", 9, struct.pack("<IQ", 8, 2) + text("a") + text("bc"))
    whole = file(NAME, texts, tensors=[tensor(), tensor("u", offset=32)], data=bytes(48))
    (tmp_path / "x").write_bytes(whole)
    assert len(read_header(tmp_path / "x").tensors) == 2
    for size in range(len(whole)):
        refusal(tmp_path / "x", whole[:size])


def test_damaged_bytes_are_refused_or_read_but_nothing_else(tmp_path):
    files.gguf()
    rng = np.random.default_rng(0)
    texts = field("texts", 9, struct.pack("<IQ", 8, 2) + text("a") + text("bc"))
    whole = np.frombuffer(file(NAME, texts, tensors=[tensor(), tensor("u", offset=32)]), np.uint8)
    num_read = 0
    for _ in range(150):
        damaged = whole.copy()
        places = rng.integers(4, len(whole), rng.integers(1, 4))
        damaged[places] = rng.integers(0, 256, len(places))
        (tmp_path / "x").write_bytes(damaged.tobytes())
        try:
            header = read_header(tmp_path / "x")
        except ModelLoadError:
            continue
        num_read += 1
        assert all(math.prod(each.shape) for each in header.tensors.values())
    assert 0 < num_read < 150


def test_a_directory_and_a_missing_file_are_one_line(tmp_path):
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(ModelLoadError, match=str(path)):
            read_header(path)
