"""A sampler of one's own, compiled into the step: python examples/custom_sampler.py [MODEL]."""

import sys

import jax
import jax.numpy as jnp

from jaxinfer import LLM, SamplerState, SamplingParams


def typical(logits: jax.Array, state: SamplerState, keys: jax.Array) -> jax.Array:
    """Locally typical sampling (Meister et al., 2022): tokens about as surprising as expected.

    Takes float32 logits `[B, V]` and a key for each row, and returns int32 token ids `[B]`.
    """
    logprobs = jax.nn.log_softmax(logits)
    expected = -jnp.sum(jnp.exp(logprobs) * logprobs, axis=-1, keepdims=True)
    distance = jnp.abs(-logprobs - expected)
    nearest = jnp.argsort(distance, axis=-1)  # most typical first
    mass = jnp.cumsum(jnp.exp(jnp.take_along_axis(logprobs, nearest, axis=-1)), axis=-1)
    kept = jnp.where(mass - mass[:, :1] < 0.9, jnp.take_along_axis(logits, nearest, -1), -jnp.inf)
    place = jax.vmap(jax.random.categorical)(keys, kept)
    return jnp.take_along_axis(nearest, place[:, None], axis=-1)[:, 0].astype(jnp.int32)


def main(model: str | None = None) -> str:
    """Write with it, print and return the text."""
    with LLM(model, sampler=typical) as llm:
        (output,) = llm.generate("Once upon a time", SamplingParams(seed=3, max_tokens=24))
    print(output.outputs[0].text)
    return output.outputs[0].text


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
