"""Page pools as plain XLA reads them: in pieces of which none spans two chunks of keys."""

import math
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int32


class Pieces(NamedTuple):
    """Pools of pages cut into pieces; a chunk of keys is a whole number of them.

    Attributes:
        k: ``[P * per_page, size, K, D]``.
        v: likewise.
        per_page: pieces of a page.
    """

    k: Array
    v: Array
    per_page: int

    @property
    def size(self) -> int:
        """Keys of a piece."""
        return self.k.shape[1]


def cut_pages(
    k_pages: Float[Array, "P S K D"], v_pages: Float[Array, "P S K D"], chunk: int
) -> Pieces:
    """View the pools for chunks of a given number of keys."""
    P, S, K, D = k_pages.shape
    size = math.gcd(S, chunk)
    shape = (P * (S // size), size, K, D)
    return Pieces(k_pages.reshape(shape), v_pages.reshape(shape), S // size)


def gather_pieces(
    pool: Float[Array, "P size K D"], ids: Int32[Array, "R count"]
) -> Float[Array, "R C K D"]:
    """The pieces of each row side by side; C is ``count * size``."""
    # Gathered as rows of a matrix: XLA's CPU backend copies a row in one piece.
    found = jnp.take(pool.reshape(pool.shape[0], -1), ids.reshape(-1), axis=0, mode="clip")
    return found.reshape(ids.shape[0], -1, *pool.shape[2:])
