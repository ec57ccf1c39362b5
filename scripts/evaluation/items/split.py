"""Decides which items are held out, so that training never sees them."""

import hashlib

HELD_OUT_ONE_IN = 10
"""One key in this many is held out."""


def is_held_out(key: str) -> bool:
    """Whether items with this key are kept from training.

    The answer depends on the key alone (a SHA-256 of it), not on a seed or an order, so every
    program that asks agrees. A key names the part that must be unseen: the two numbers of a
    sum, say, not the words around them.
    """
    digest = hashlib.sha256(key.encode("utf-8")).digest()
    return int.from_bytes(digest[:8], "big") % HELD_OUT_ONE_IN == 0
