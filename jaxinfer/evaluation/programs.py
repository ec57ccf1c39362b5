"""What the devices compute of a text: its residual streams, log-probabilities, and differences.

Each program is of one model or of plain arrays, never of two models: a model compared with itself
runs the same executables twice, and differs by exactly nothing. Letters: N tokens of a chunk.
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Float32, Int32

from jaxinfer.model.architecture import architecture_of
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.forward import residual_stream
from jaxinfer.model.layers.context import Params

Streams = tuple[Float[Array, "T E"], ...]


@functools.partial(jax.jit, static_argnames="config")
@jax.numpy_rank_promotion("allow")  # as `forward`
def text_states(
    params: Params, config: ModelConfig, token_ids: Int32[Array, " T"]
) -> tuple[Streams, Float[Array, "T E"]]:
    """The residual stream as it leaves each layer, and the final hidden states.

    Padding behind a text changes nothing before it, since attention is causal.
    """
    later = range(1, config.num_hidden_layers)
    last, entering = residual_stream(params, config, token_ids, watched=later)
    streams = (*(entering[index] for index in later), last)
    return streams, architecture_of(config).final_hidden(params, last, config)


@functools.partial(jax.jit, static_argnames=("config", "count"))
@jax.numpy_rank_promotion("allow")
def log_probabilities(
    head: Params,
    config: ModelConfig,
    hidden: Float[Array, "T E"],
    start: Int32[Array, ""],
    count: int,
) -> Float32[Array, "N V"]:
    """Log-probabilities of the tokens after `count` tokens of a text from `start` on.

    Args:
        head: from `Architecture.head_params`.
        config: the model's shape.
        hidden: from `text_states`.
        start: index of the chunk's first token.
        count: N.
    """
    chunk = jax.lax.dynamic_slice_in_dim(hidden, start, count)
    return jax.nn.log_softmax(architecture_of(config).lm_head(head, chunk))


@jax.jit
def nlls(log_probs: Float32[Array, "N V"], token_ids: Int32[Array, " N"]) -> Float32[Array, " N"]:
    """The negative log-probability of one token in each row."""
    return -jnp.take_along_axis(log_probs, token_ids[:, None], axis=1)[:, 0]


@jax.jit
def divergences(
    log_probs: Float32[Array, "N V"], reference: Float32[Array, "N V"]
) -> tuple[Float32[Array, " N"], Bool[Array, " N"]]:
    """KL(reference || model) of each row in nats, and whether both have the same likeliest token.

    Each term is ``p (d - 1 + exp(-d))`` with ``d = log p - log q``: the sum is that of ``p d``,
    since p and q sum to 1, but no term is negative, and a rounding error in a logarithm counts only
    multiplied by d. The plain sum would show errors of 1e-6 where p and q hardly differ.
    """
    d = reference - log_probs
    p, q = jnp.exp(reference), jnp.exp(log_probs)
    small = jnp.abs(d) < 1
    near = p * (d + jnp.expm1(jnp.where(small, -d, 0.0)))
    kl = jnp.where(small, near, p * d - p + q).sum(axis=1)
    return kl, log_probs.argmax(axis=1) == reference.argmax(axis=1)


@jax.jit
def squared_norms(
    streams: Streams, references: Streams
) -> tuple[Float32[Array, "L T"], Float32[Array, "L T"]]:
    """Squared norms of the difference of two models' streams, and of the reference's."""
    pairs = [
        (x.astype(jnp.float32), y.astype(jnp.float32))
        for x, y in zip(streams, references, strict=True)
    ]
    differences = jnp.stack([jnp.square(x - y).sum(axis=-1) for x, y in pairs])
    return differences, jnp.stack([jnp.square(y).sum(axis=-1) for _, y in pairs])
