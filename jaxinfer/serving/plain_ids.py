"""Packs a list of token ids and finds out, in one pass, whether they are plain integers."""

import marshal
from typing import Any

import numpy as np

_FORMAT = 2  # the last without references between equal objects: every value is written out
_HEADER = 5  # bytes: "[" and the length
_RECORD = np.dtype([("kind", "S1"), ("id", "<i4")])
_INT32 = b"i"


def pack_plain_ids(ids: list[Any]) -> bytes | None:
    """`pack_ids` of a list whose entries have no other type than int; None if one does not fit.

    A call of `type` for each entry and a conversion of each would cost three times as much, and
    all prompts are checked before the first one runs. `marshal` writes an int of 32 bits as its
    kind and four bytes, and everything else under another kind; so the first that is no such int
    stands where a kind is looked at.
    """
    try:
        data = marshal.dumps(ids, _FORMAT)
    except ValueError:  # an entry that has no such form
        return None
    if len(data) != _HEADER + _RECORD.itemsize * len(ids):
        return None
    if data[_HEADER :: _RECORD.itemsize].count(_INT32) != len(ids):
        return None
    return np.frombuffer(data, _RECORD, offset=_HEADER)["id"].astype(np.int32).tobytes()
