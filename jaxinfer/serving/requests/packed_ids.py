"""Token ids packed as int32 bytes, which are cheap to slice, hash and copy into NumPy arrays."""

from array import array
from collections.abc import Sequence

ID_BYTES = 4
"""Bytes of a packed token id."""


def pack_ids(token_ids: Sequence[int]) -> bytes:
    """Token ids as int32 in the machine's byte order, `ID_BYTES` each.

    Raises:
        OverflowError: an id is outside the range of int32.
    """
    return array("i", token_ids).tobytes()


def unpack_ids(packed: bytes) -> list[int]:
    """The token ids given to `pack_ids`; ValueError if the bytes are not whole ids."""
    token_ids = array("i")
    token_ids.frombytes(packed)
    return token_ids.tolist()
