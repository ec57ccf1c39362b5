"""Which experts a router takes, token by token of two kinds of text: python examples/experts.py."""

from dataclasses import replace

import jax
import jax.numpy as jnp

from jaxinfer import ModelConfig, Tokenizer, load_params
from jaxinfer.model.checkpoint.hub import BUNDLED_MODELS
from jaxinfer.model.forward import residual_stream

TEXTS = ("Once upon a time, there was a wise whale.", "37 + 45 = 82, and 6 * 7 = 42.")


def chosen_experts(params: dict, config: ModelConfig, token_ids: jax.Array, k=2) -> jax.Array:
    """The experts of each token, likeliest first, int32 ``[layers, T, k]``."""
    read = [{} for _ in range(config.num_hidden_layers)]  # by each layer's parts

    def tapped(context):
        return replace(context, tap=read[context.index].__setitem__)

    residual_stream(params, config, token_ids, change=tapped)
    gates = [params["model"]["layers"][str(layer)]["mlp"]["gate"] for layer in range(len(read))]
    logits = jnp.stack([part["router"] @ gate.T for part, gate in zip(read, gates, strict=True)])
    return jax.lax.top_k(logits, k)[1]


if __name__ == "__main__":
    directory = BUNDLED_MODELS["bundled-experts"]
    config, tokenizer = ModelConfig.from_directory(directory), Tokenizer.from_directory(directory)
    params = load_params(directory, config, "float32")
    for text in TEXTS:
        token_ids = tokenizer.encode(text)
        chosen = jax.jit(chosen_experts, static_argnums=1)(params, config, jnp.array(token_ids))
        for token_id, layers in zip(token_ids, chosen.swapaxes(0, 1).tolist(), strict=True):
            print(f"{tokenizer.decode([token_id])!r:12}", *layers)
