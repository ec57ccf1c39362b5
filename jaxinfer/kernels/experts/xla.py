"""A router, and products with the experts that it chose, in plain XLA: every platform's path.

Rows are sorted by expert and cut into blocks of one expert each; a loop over the blocks that there
are reads the weights of one expert at a time. So what is computed and read grows with what was
chosen, not with the number of experts, as it does in XLA's own `jax.lax.ragged_dot`, which on CPUs
and GPUs multiplies by all of them. Letters: T tokens, k experts of a token, X experts, E hidden, F
width of an expert, N = T k slots, M rows of a block.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int32

from jaxinfer.kernels.experts.codes import QuantizedExperts
from jaxinfer.kernels.matmul.quantized import QuantizedLinear
from jaxinfer.kernels.matmul.xla import contract, linear
from jaxinfer.kernels.rounding import narrow, rounded

# With fewer rows an expert, blocks of one row read little twice, and waste nothing.
_FEW_ROWS_PER_EXPERT = 4
_SMALLEST_BLOCK, _LARGE_BLOCK = 16, 64


def route(
    hidden: Float[Array, "T E"], gate: Float[Array, "X E"], num_chosen: int, *, normalize: bool
) -> tuple[Int32[Array, "T k"], Float[Array, "T k"]]:
    """The experts of each token, likeliest first, and their weights.

    The softmax over all experts is float32; its logits and the weights are rounded to the dtype of
    `hidden`, where Hugging Face's models round them. A token of which a logit is NaN or plus
    infinity has weights of NaN, for the first experts.

    Args:
        hidden: what the experts read.
        gate: the router's weight.
        num_chosen: k, at most X.
        normalize: weights of a token are divided by their sum.
    """
    logits = linear(hidden, gate).astype(jnp.float32)
    probabilities = jax.nn.softmax(logits, axis=-1)
    weights, chosen = jax.lax.top_k(probabilities, num_chosen)
    # One logit makes all of a token's NaN, of which `top_k` may give anything, by platform.
    fails = jnp.isnan(probabilities[:, :1])
    weights = jnp.where(fails, jnp.nan, weights)
    chosen = jnp.where(fails, jnp.arange(num_chosen, dtype=jnp.int32)[None], chosen)
    if normalize:
        weights = weights / jnp.sum(weights, axis=-1, keepdims=True)
    return chosen, narrow(weights, hidden.dtype)


def mixture(
    hidden: Float[Array, "T E"],
    chosen: Int32[Array, "T k"],
    weights: Float[Array, "T k"],
    gate: Float[Array, "X F E"] | QuantizedExperts,
    up: Float[Array, "X F E"] | QuantizedExperts,
    down: Float[Array, "X E F"] | QuantizedExperts,
    *,
    is_token: Bool[Array, " T"] | None = None,
) -> Float[Array, "T E"]:
    """The weighted sum of each token's experts, added in float32 in the order of its choice.

    For a number of rows T, a token's result depends on nothing in the other rows. Differentiable in
    reverse, but for codes.

    Args:
        hidden: what the experts read; its dtype is the result's.
        chosen: as of `route`, in [0, X); X is no expert, for one that another device has.
        weights: as of `route`.
        gate: of each expert, plain or as codes, or one device's share of F.
        up: in gate's form.
        down: in gate's form.
        is_token: False for padding, which is multiplied by nothing and gets zeros; None where there
            is none.
    """
    if is_token is not None:
        chosen = jnp.where(is_token[:, None], chosen, gate.shape[0])
    compute = _outputs if isinstance(gate, QuantizedExperts) else expert_outputs
    outputs = compute(hidden, chosen, gate, up, down).astype(jnp.float32)
    weighed = outputs * weights.astype(jnp.float32)[:, :, None]
    total = functools.reduce(jnp.add, (weighed[:, i] for i in range(chosen.shape[1])))
    if is_token is not None:  # weights of padding may be anything
        total = jnp.where(is_token[:, None], total, 0.0)
    return narrow(total, hidden.dtype)


@jax.custom_vjp
def expert_outputs(
    hidden: Float[Array, "T E"],
    chosen: Int32[Array, "T k"],
    gate: Float[Array, "X F E"],
    up: Float[Array, "X F E"],
    down: Float[Array, "X E F"],
) -> Float[Array, "T k E"]:
    """Each token's row through each of its experts; zeros where `chosen` is X.

    Differentiable in reverse: the backward pass computes each block again.
    """
    return _outputs(hidden, chosen, gate, up, down)


def _outputs(
    hidden: Float[Array, "T E"], chosen: Int32[Array, "T k"], *matrices: Any
) -> Float[Array, "T k E"]:
    gate, up, down = matrices
    sorting = _sort(chosen, gate.shape[0])

    def add_block(block: jax.Array | int, outputs: jax.Array) -> jax.Array:
        expert, slots = sorting.block(block)
        rows = _rows(hidden, slots // chosen.shape[1])
        made = _expert(rows, gate[expert], up[expert], down[expert])
        return outputs.at[slots].set(made, mode="drop", unique_indices=True)

    outputs = jnp.zeros((chosen.size, hidden.shape[1]), hidden.dtype)
    outputs = jax.lax.fori_loop(0, sorting.num_blocks, add_block, outputs)
    return outputs.reshape(*chosen.shape, -1)


def _forward(
    hidden: jax.Array, chosen: jax.Array, *matrices: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    return expert_outputs(hidden, chosen, *matrices), (hidden, chosen, *matrices)


def _backward(
    inputs: tuple[jax.Array, ...], gradient: Float[Array, "T k E"]
) -> tuple[jax.Array | None, ...]:
    """Gradients of `expert_outputs`; of matrices they are summed in float32."""
    hidden, chosen, *matrices = inputs
    sorting, flat = _sort(chosen, matrices[0].shape[0]), gradient.reshape(chosen.size, -1)

    def add_block(block: jax.Array | int, sums: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        expert, slots = sorting.block(block)
        rows = _rows(hidden, slots // chosen.shape[1])
        _, pull = jax.vjp(_expert, rows, *(each[expert] for each in matrices))
        of_rows, *others = pull(_rows(flat, slots))
        of_slots, *of_matrices = sums
        return (
            of_slots.at[slots].set(of_rows, mode="drop", unique_indices=True),
            *(
                total.at[expert].add(each.astype(total.dtype))
                for total, each in zip(of_matrices, others, strict=True)
            ),
        )

    zeros = (jnp.zeros_like(flat), *(jnp.zeros(each.shape, jnp.float32) for each in matrices))
    of_slots, *sums = jax.lax.fori_loop(0, sorting.num_blocks, add_block, zeros)
    of_hidden = jnp.sum(of_slots.reshape(gradient.shape).astype(jnp.float32), axis=1)
    of_matrices = (total.astype(each.dtype) for total, each in zip(sums, matrices, strict=True))
    return of_hidden.astype(hidden.dtype), None, *of_matrices


expert_outputs.defvjp(_forward, _backward)


def _expert(
    rows: Float[Array, "M E"],
    gate: Float[Array, "F E"] | QuantizedLinear,
    up: Float[Array, "F E"] | QuantizedLinear,
    down: Float[Array, "E F"] | QuantizedLinear,
) -> Float[Array, "M E"]:
    """One expert, a gated MLP, rounded where a dense one is."""
    opened = rounded(jax.nn.silu(_product(rows, gate).astype(jnp.float32)), rows.dtype)
    inner = narrow(opened * _product(rows, up).astype(jnp.float32), rows.dtype)
    return _product(inner, down)


def _product(rows: Float[Array, "M I"], matrix: jax.Array | QuantizedLinear) -> jax.Array:
    """``rows @ matrix.T``, in the dtype of the rows."""
    if isinstance(matrix, QuantizedLinear):
        return matrix.product(rows, rows.dtype)
    return contract(rows, matrix, rows.dtype)


def _rows(array: Float[Array, "T E"], indices: Int32[Array, " M"]) -> Float[Array, "M E"]:
    """Rows of an array; zeros for indices beyond it."""
    return array.at[indices].get(mode="fill", fill_value=0)


class _Sorting(NamedTuple):
    """Slots in the order of their experts, cut into blocks.

    Attributes:
        order: the slots, `token * k + place`.
        starts: where each expert's begin in this order; padding's are behind the last expert's.
        ends: the number of blocks up to each expert, its own included.
        rows: M.
    """

    order: Int32[Array, " N"]
    starts: Int32[Array, " X_plus_1"]
    ends: Int32[Array, " X"]
    rows: int

    @property
    def num_blocks(self) -> Int32[Array, ""]:
        """Blocks that have a row."""
        return self.ends[-1]

    def block(self, index: jax.Array | int) -> tuple[Int32[Array, ""], Int32[Array, " M"]]:
        """Expert and slots of a block, all different: those of no row are far beyond the last."""
        expert = jnp.sum(self.ends <= index, dtype=jnp.int32)
        start, end = self.starts[expert], self.starts[expert + 1]
        num_blocks = (end - start + self.rows - 1) // self.rows
        within = index - (self.ends[expert] - num_blocks)
        offsets = jnp.arange(self.rows, dtype=jnp.int32)
        places = start + within * self.rows + offsets
        slots = self.order.at[places].get(mode="clip")
        return expert, jnp.where(places < end, slots, jnp.iinfo(jnp.int32).max - offsets)


def _sort(chosen: Int32[Array, "T k"], num_experts: int) -> _Sorting:
    experts = chosen.reshape(-1)
    order = jnp.argsort(experts, stable=True).astype(jnp.int32)
    sizes = jnp.zeros(num_experts, jnp.int32).at[experts].add(1, mode="drop")
    starts = jnp.cumsum(jnp.pad(sizes, (1, 0)), dtype=jnp.int32)
    rows = _block_rows(experts.size, num_experts)
    num_blocks = (sizes + rows - 1) // rows
    return _Sorting(order, starts, jnp.cumsum(num_blocks, dtype=jnp.int32), rows)


def _block_rows(num_slots: int, num_experts: int) -> int:
    """M, a power of two, by how many rows an expert has on average.

    With few about twice as many, so that most experts take one block; with many at most a quarter,
    so that the loop has some tens of blocks and few places without a row.
    """
    if num_slots < _FEW_ROWS_PER_EXPERT * num_experts:
        return 1
    twice = -(-2 * num_slots // num_experts)
    few = min(max(1 << (twice - 1).bit_length(), _SMALLEST_BLOCK), _LARGE_BLOCK)
    quarter = max(num_slots // num_experts // 4, 1)
    return max(few, 1 << (quarter.bit_length() - 1))
