"""Rows of tokens in pages beside the model's, by position in the blocks of sequences."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int32

from jaxinfer.kernels.attention.pages import Pages


def write_pair(
    pages: Pages,
    keys: Float[Array, "T K D"],
    values: Float[Array, "T K D"],
    slot_mapping: Int32[Array, " T"],
) -> Pages:
    """Write keys and values of the head's layer."""
    return Pages(write(pages.k, keys, slot_mapping), write(pages.v, values, slot_mapping))


def write(
    pages: Float[Array, "P S *rest"], rows: Float[Array, "T *rest"], slots: Int32[Array, " T"]
) -> Float[Array, "P S *rest"]:
    """Write a row for each token; slots are ``block * S + offset``, 0 for padding."""
    S = pages.shape[1]
    return pages.at[slots // S, slots % S].set(rows, mode="drop")


def read(
    pages: Float[Array, "P S *rest"], tables: Int32[Array, "T W"], positions: Int32[Array, " T"]
) -> Float[Array, "T *rest"]:
    """The row at a position of each sequence; anything where the position is -1.

    Args:
        pages: as they are.
        tables: each sequence's blocks.
        positions: of the sequences.
    """
    S = pages.shape[1]
    return pages.at[block_at(tables, positions, S), jnp.maximum(positions, 0) % S].get(mode="clip")


def block_at(
    tables: Int32[Array, "T W"], positions: Int32[Array, " T"], block_size: int
) -> Int32[Array, " T"]:
    """The block that holds a position of each sequence; positions below 0 count as 0."""
    places = jnp.maximum(positions, 0) // block_size
    return jnp.take_along_axis(tables, places[:, None], axis=1, mode="clip")[:, 0]
