"""Each slot's logit edits and token counts on the device: set when a request gets the slot.

Pure functions for one device's shards, as in `sample_steps.py`. Padding of updates has a slot
beyond the last one and is dropped.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Int32

from jaxinfer.kernels.collectives.tensor_axis import MeshAxes
from jaxinfer.serving.sampling.edits import local_columns
from jaxinfer.serving.sampling.layout import (
    IN_OUTPUT,
    IN_PROMPT,
    Column,
    LogitEdits,
    Need,
    SamplingArrays,
    SlotState,
)
from jaxinfer.serving.sampling.vocab_axis import VocabAxis


def with_slot_state(
    arrays: SamplingArrays, state: SlotState, slots: Int32[Array, " B"]
) -> SamplingArrays:
    """Add the state of the rows' slots."""
    rows = jax.tree.map(lambda kept: jnp.take(kept, slots, axis=0, mode="clip"), state)
    return arrays._replace(token_counts=rows.token_counts, edits=rows.edits)


def set_edits(edits: LogitEdits, slots: Int32[Array, " R"], given: LogitEdits) -> LogitEdits:
    """Replace some slots' edits; `edits` is donated."""
    return jax.tree.map(lambda kept, new: kept.at[slots].set(new, mode="drop"), edits, given)


def set_masks(
    allowed: Int[Array, "slots W"], slots: Int32[Array, " R"], given: Int32[Array, "R W"]
) -> Int[Array, "slots W"]:
    """Replace the masks of some slots' edits; `allowed` is donated."""
    return allowed.at[slots].set(given, mode="drop")


def count_tokens(
    token_counts: Int[Array, "slots V"],
    cleared: Int32[Array, " R"],
    tokens: Int32[Array, "3 T"],
    *,
    axis: MeshAxes | None = None,
) -> Int[Array, "slots V"]:
    """Clear some slots' counts, then count known tokens of prompts and outputs.

    Args:
        token_counts: this device's shard; donated.
        cleared: slots that a new request has got.
        tokens: slot, token id, and 1 for a generated token or 0 for one of the prompt.
        axis: name of the mesh axis that splits the vocabulary, or None.
    """
    width = token_counts.shape[1]
    counts = token_counts.at[cleared].set(0, mode="drop")
    slots, ids, generated = tokens
    columns = local_columns(ids, width, VocabAxis(axis))
    # Equal values at equal places, so that the order of duplicates plays no part.
    in_prompt = counts.at[slots, columns].get(mode="fill", fill_value=0) | IN_PROMPT
    columns_of_prompt = jnp.where(generated == 0, columns, width)
    counts = counts.at[slots, columns_of_prompt].set(in_prompt, mode="drop")
    return counts.at[slots, columns].add(IN_OUTPUT * generated, mode="drop")


def count_sampled(
    token_counts: Int[Array, "slots V"],
    slots: Int32[Array, " B"],
    tokens: Int32[Array, " B"],
    scalars: Int32[Array, "B C"],
    axis: VocabAxis,
) -> Int[Array, "slots V"]:
    """Count the token that each row has drawn, where its history is needed."""
    columns = local_columns(tokens, token_counts.shape[1], axis)
    needs_history = (scalars[:, Column.NEEDS] & Need.HISTORY) != 0
    return token_counts.at[slots, columns].add(jnp.where(needs_history, IN_OUTPUT, 0), mode="drop")
