"""Two-batch overlap: a layer on two parts of the tokens, one's sums beside the other's products.

Under tensor parallelism a layer sums over the devices twice, and what follows has to wait for the
sum. With the tokens in two parts, whole blocks of products alternate,

    attention 1 | attention 2 | MLP 1 | MLP 2 | attention 1 of the next layer
                | sum 1       | sum 2 | sum 1 | sum 2

and each sum has a block of the other part beside it. XLA's scheduler knows neither how long a
kernel of ours takes nor an all-reduce; left alone it lets some sums run beside nothing but a norm.
So barriers pin the order, and the scheduler only starts each sum early and waits for it late. They
also tell XLA that a part has read the pages before the next one writes to them; otherwise it would
copy the pool.
"""

from collections.abc import Callable, Sequence

import jax

from jaxinfer.kernels.attention.op import Backend
from jaxinfer.kernels.collectives.tensor_axis import TensorAxis
from jaxinfer.kernels.matmul.op import Linear, ResidualStream, linear_of, project
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.qwen3 import Attend, Params, attention_block, gated_block, sum_and_add

Block = Callable[[int, ResidualStream], tuple[ResidualStream, jax.Array]]


def overlapped_layer(
    layer: Params,
    residuals: Sequence[ResidualStream],
    config: ModelConfig,
    attends: Sequence[Attend],
    axis: TensorAxis,
    backend: Backend = "xla",
) -> list[ResidualStream]:
    """`qwen3.decoder_layer` on each part; part i may read keys and values that parts before wrote.

    Args:
        layer: this layer's subtree, one device's shards of it.
        residuals: the residual stream of each part.
        config: constants and the global number of key/value heads.
        attends: each part's attention, called once, in order.
        axis: mesh axis of tensor parallelism. All sums are XLA's: two may run at once.
        backend: whose kernels compute the projections.
    """
    attention, axis = layer["self_attn"], axis.alone()

    def attended(part: int, residual: ResidualStream) -> tuple[ResidualStream, jax.Array]:
        return attention_block(layer, residual, config, attends[part], axis, backend)

    def gated(_: int, residual: ResidualStream) -> tuple[ResidualStream, jax.Array]:
        return gated_block(layer, residual, config, backend)

    output = linear_of(attention, "o_proj"), attention.get("o_proj_bias")
    down = linear_of(layer["mlp"], "down_proj")
    residuals = _overlapped("o", residuals, attended, *output, axis, backend)
    return _overlapped("mlp", residuals, gated, down, None, axis, backend)


def _overlapped(
    name: str,
    residuals: Sequence[ResidualStream],
    block: Block,
    linear: Linear,
    bias: jax.Array | None,
    axis: TensorAxis,
    backend: Backend,
) -> list[ResidualStream]:
    """Each residual stream plus its block's product, summed while the next part computes.

    The product and its sum bear the name; the block has names of its own.
    """
    residuals = list(residuals)
    for part, residual in enumerate(residuals):
        settled, hidden = block(part, residual)
        following = (part + 1) % len(residuals)
        with jax.named_scope(name):
            # The part that follows starts when this product is there, and this sum beside it.
            product, residuals[following] = jax.lax.optimization_barrier(
                (project(hidden, linear), residuals[following])
            )
            residuals[part] = sum_and_add(product, bias, settled, axis, backend)
    return residuals
