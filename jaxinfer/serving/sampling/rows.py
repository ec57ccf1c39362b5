"""The batch's sampling parameters on the device: one array a parameter, from the packed columns."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from jaxinfer.sampling_params import GREEDY_TEMPERATURE
from jaxinfer.serving.sampling.layout import Column, Need


class RowParameters(NamedTuple):
    """The fields of `SamplingParams` that the device needs, each `[B]`.

    Attributes:
        temperature: float32; below 1e-5 the row is greedy.
        top_k: int32; below 1 is off.
        top_p: float32; 1 is off.
        min_p: float32; 0 is off.
        seed_low: int32, the low 32 bits of the seed.
        seed_high: int32, the high 32 bits of the seed.
        position: int32, the absolute position of the token to draw.
        repetition_penalty: float32; 1 is off.
        presence_penalty: float32; 0 is off.
        frequency_penalty: float32; 0 is off.
        prompt_length: int32, tokens of the prompt.
        needs: int32, bits of `Need`.
    """

    temperature: Float[Array, "B"]
    top_k: Int[Array, "B"]
    top_p: Float[Array, "B"]
    min_p: Float[Array, "B"]
    seed_low: Int[Array, "B"]
    seed_high: Int[Array, "B"]
    position: Int[Array, "B"]
    repetition_penalty: Float[Array, "B"]
    presence_penalty: Float[Array, "B"]
    frequency_penalty: Float[Array, "B"]
    prompt_length: Int[Array, "B"]
    needs: Int[Array, "B"]

    @property
    def greedy(self) -> jax.Array:
        """Bool `[B]`: rows that take the largest logit."""
        return self.temperature < GREEDY_TEMPERATURE

    @property
    def needs_edits(self) -> jax.Array:
        """Bool `[B]`: rows with biases, bans or a set of allowed tokens."""
        return (self.needs & Need.EDITS) != 0

    @property
    def needs_history(self) -> jax.Array:
        """Bool `[B]`: rows with penalties."""
        return (self.needs & Need.HISTORY) != 0


def unpack_rows(scalars: Int[Array, "B C"]) -> RowParameters:
    """Split the packed columns; floats come back from their bits."""

    def floats(column: Column) -> jax.Array:
        return lax.bitcast_convert_type(scalars[:, column], jnp.float32)

    return RowParameters(
        temperature=floats(Column.TEMPERATURE),
        top_k=scalars[:, Column.TOP_K],
        top_p=floats(Column.TOP_P),
        min_p=floats(Column.MIN_P),
        seed_low=scalars[:, Column.SEED_LOW],
        seed_high=scalars[:, Column.SEED_HIGH],
        position=scalars[:, Column.POSITION],
        repetition_penalty=floats(Column.REPETITION_PENALTY),
        presence_penalty=floats(Column.PRESENCE_PENALTY),
        frequency_penalty=floats(Column.FREQUENCY_PENALTY),
        prompt_length=scalars[:, Column.PROMPT_LENGTH],
        needs=scalars[:, Column.NEEDS],
    )


def row_keys(rows: RowParameters) -> jax.Array:
    """Return one random key a row, `[B]`, made of its seed and position and nothing else.

    Batch mates, slots and the mesh therefore can't change a row's randomness. The generator is
    fixed, independent of JAX's default, so that a seed means the same tokens everywhere. It is
    Threefry (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"), used as the
    counter-based generator that it is: one block, whose key is the seed, its counter the position.
    """
    words = jnp.stack([rows.seed_high, rows.seed_low], axis=1)
    seeds = jax.random.wrap_key_data(
        lax.bitcast_convert_type(words, jnp.uint32), impl="threefry2x32"
    )
    positions = lax.bitcast_convert_type(rows.position, jnp.uint32)
    return jax.vmap(jax.random.fold_in)(seeds, positions)
