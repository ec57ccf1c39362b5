"""The bytes of packed integers, as files hold them and as trees do; pure functions of arrays.

A tree holds 4-bit integers two in a byte, along inputs, the even one in the lower half, and 8-bit
ones as signed bytes. Each int32 of a file holds eight or four, the first in the lowest bits.
"""

import sys

import numpy as np

# AutoAWQ's order: nibble i of an int32 is of this output among its eight.
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def bytes_of(words: np.ndarray) -> np.ndarray:
    """Uint8 ``[..., 4 * N]``, lowest bits first, of int32 ``[..., N]``; a view where it can be."""
    words = words if sys.byteorder == "little" else words.byteswap()
    return np.ascontiguousarray(words).view(np.uint8)


def signed(codes: np.ndarray) -> np.ndarray:
    """Int8 of 8-bit codes that are stored 128 higher."""
    return (codes ^ np.uint8(128)).view(np.int8)


def unpack(packed: np.ndarray) -> np.ndarray:
    """Uint8 ``[..., 2 * N]`` of bytes ``[..., N]`` that hold two 4-bit integers each."""
    return np.stack([packed & 15, packed >> 4], axis=-1).reshape(*packed.shape[:-1], -1)


def pack(codes: np.ndarray) -> np.ndarray:
    """Bytes ``[..., N // 2]`` of 4-bit integers ``[..., N]``."""
    return codes[..., 0::2] | codes[..., 1::2] << 4


def words(packed: np.ndarray) -> np.ndarray:
    """Int32 ``[..., ceil(N / 4)]`` of bytes ``[..., N]``, the first in the lowest bits."""
    missing = -packed.shape[-1] % 4
    padded = np.pad(packed, [(0, 0)] * (packed.ndim - 1) + [(0, missing)])
    return np.ascontiguousarray(padded).view("<i4").astype(np.int32, copy=False)


def packed_words(codes: np.ndarray) -> np.ndarray:
    """Int32 ``[..., ceil(N / 8)]`` of 4-bit integers ``[..., N]``; bits that are left are zero."""
    missing = -codes.shape[-1] % 8
    return words(pack(np.pad(codes, [(0, 0)] * (codes.ndim - 1) + [(0, missing)])))


def awq_codes(words: np.ndarray) -> np.ndarray:
    """Uint8 ``[N, O]`` of AutoAWQ's int32 ``[N, O / 8]``, whose outputs are interleaved."""
    nibbles = unpack(bytes_of(words)).reshape(*words.shape, 8)
    ordered = np.empty_like(nibbles)
    ordered[..., list(_AWQ_ORDER)] = nibbles
    return ordered.reshape(words.shape[0], -1)


def awq_weight(words: np.ndarray) -> np.ndarray:
    """Bytes ``[O, I / 2]`` of AutoAWQ's weight, int32 ``[I, O / 8]``."""
    inputs, eighths = words.shape
    # Whole words are transposed first: every pass that follows reads and writes along inputs.
    nibbles = bytes_of(np.ascontiguousarray(words.T)).reshape(eighths, inputs // 2, 2, 4)
    packed = np.empty((eighths, 8, inputs // 2), np.uint8)
    for byte in range(4):
        even, odd = nibbles[:, :, 0, byte], nibbles[:, :, 1, byte]
        packed[:, _AWQ_ORDER[2 * byte]] = even & 15 | odd << 4
        packed[:, _AWQ_ORDER[2 * byte + 1]] = even >> 4 | odd & 240
    return packed.reshape(8 * eighths, inputs // 2)


def gptq_weight(words: np.ndarray) -> np.ndarray:
    """Bytes ``[O, 4 * N]`` of GPTQ's weight, int32 ``[N, O]``: its bits lie along inputs."""
    return bytes_of(np.ascontiguousarray(words.T))


def gptq_zeros(words: np.ndarray, bits: int) -> np.ndarray:
    """Uint8 ``[O, G]`` of GPTQ's zero points, int32 ``[G, O * bits / 32]``, as they are stored."""
    codes = bytes_of(words)
    return (unpack(codes) if bits == 4 else codes).T
