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
from dataclasses import replace

import jax

from jaxinfer.kernels.matmul.op import AnyLinear, ResidualStream, linear_of, project
from jaxinfer.model.layers.context import LayerContext, Params
from jaxinfer.model.layers.decoder import attention_block, gated_block, sum_and_add

Block = Callable[[Params, ResidualStream, LayerContext], tuple[ResidualStream, jax.Array]]


def overlapped_layer(
    layer: Params, residuals: Sequence[ResidualStream], contexts: Sequence[LayerContext]
) -> list[ResidualStream]:
    """`decoder_layer` on each part; part i may read keys and values that parts before wrote.

    Args:
        layer: this layer's subtree, one device's shards of it.
        residuals: the residual stream of each part.
        contexts: each part's, with a mesh axis. Their attention is called once, in order. All sums
            are XLA's: two may run at once.
    """
    contexts = [replace(each, axis=each.axis and each.axis.alone()) for each in contexts]
    attention, mlp = layer["self_attn"], layer["mlp"]
    form = contexts[0].config.quantization
    output = linear_of(attention, "o_proj", form), attention.get("o_proj_bias")
    down = linear_of(mlp, "down_proj", form), mlp.get("down_proj_bias")
    residuals = _overlapped("o", layer, residuals, contexts, attention_block, *output)
    return _overlapped("mlp", layer, residuals, contexts, gated_block, *down)


def _overlapped(
    name: str,
    layer: Params,
    residuals: Sequence[ResidualStream],
    contexts: Sequence[LayerContext],
    block: Block,
    linear: AnyLinear,
    bias: jax.Array | None,
) -> list[ResidualStream]:
    """Each residual stream plus its block's product, summed while the next part computes.

    The product and its sum bear the name; the block has names of its own.
    """
    residuals = list(residuals)
    for part, (residual, context) in enumerate(zip(residuals, contexts, strict=True)):
        settled, hidden = block(layer, residual, context)
        following = (part + 1) % len(residuals)
        with jax.named_scope(name):
            # The part that follows starts when this product is there, and this sum beside it.
            product, residuals[following] = jax.lax.optimization_barrier(
                (project(hidden, linear), residuals[following])
            )
            residuals[part] = sum_and_add(product, bias, settled, context.axis, context.kernels)
    return residuals
