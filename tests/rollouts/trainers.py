"""One small model as different trainers hold it, made from the engine's own tree."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tests.serving.small_llm import CONFIG

H, K, D = CONFIG.num_attention_heads, CONFIG.num_key_value_heads, CONFIG.head_dim
HEADS = {"q_proj": H, "k_proj": K, "v_proj": K}


def other_params() -> Any:
    """Other weights than `small_params`, spread so that greedy answers differ."""
    from tests.serving.small_llm import small_params

    rng = np.random.default_rng(7)

    def spread(leaf: jax.Array) -> jax.Array:
        return jnp.asarray(leaf + rng.normal(0.0, 0.1, leaf.shape).astype(np.float32))

    return jax.tree.map(spread, small_params())


def _layers(params: Any) -> list[Any]:
    return [params["model"]["layers"][str(i)] for i in range(CONFIG.num_hidden_layers)]


def tunix(params: Any) -> dict[str, Any]:
    """Integer layer keys, heads as a dimension of their own, as `nnx.to_pure_dict` gives them."""

    def layer(own: Any) -> Any:
        attention, mlp = own["self_attn"], own["mlp"]
        return {
            "input_layernorm": {"w": own["input_layernorm"]},
            "post_attention_layernorm": {"w": own["post_attention_layernorm"]},
            "attn": {
                **{
                    name: {"w": attention[name].reshape(heads, D, -1).transpose(2, 0, 1)}
                    for name, heads in HEADS.items()
                },
                "o_proj": {"w": attention["o_proj"].reshape(-1, H, D).transpose(1, 2, 0)},
                "q_norm": {"w": attention["q_norm"]},
                "k_norm": {"w": attention["k_norm"]},
            },
            "mlp": {name: {"kernel": weight.T} for name, weight in mlp.items()},
        }

    return {
        "embedder": {"input_embedding": params["model"]["embed_tokens"]},
        "layers": {i: layer(own) for i, own in enumerate(_layers(params))},
        "final_norm": {"w": params["model"]["norm"]},
        "lm_head": {"w": params["lm_head"].T},
    }


def maxtext(params: Any, axis: int = 1) -> dict[str, Any]:
    """Linen's variables with stacked layers."""
    names = {"q_proj": "query", "k_proj": "key", "v_proj": "value"}
    mlp = {"gate_proj": "wi_0", "up_proj": "wi_1", "down_proj": "wo"}

    def stack(get: Any) -> Any:
        return jnp.stack([get(own) for own in _layers(params)], axis=axis)

    attention: dict[str, Any] = {
        theirs: {
            "kernel": stack(
                lambda own, n=name: own["self_attn"][n].reshape(HEADS[n], D, -1).transpose(2, 0, 1)
            )
        }
        for name, theirs in names.items()
    }
    attention["out"] = {
        "kernel": stack(lambda own: own["self_attn"]["o_proj"].reshape(-1, H, D).transpose(1, 2, 0))
    }
    attention["query_norm"] = {"scale": stack(lambda own: own["self_attn"]["q_norm"])}
    attention["key_norm"] = {"scale": stack(lambda own: own["self_attn"]["k_norm"])}
    layers = {
        "self_attention": attention,
        "mlp": {
            theirs: {"kernel": stack(lambda own, n=name: own["mlp"][n].T)}
            for name, theirs in mlp.items()
        },
        "pre_self_attention_layer_norm": {"scale": stack(lambda own: own["input_layernorm"])},
        "post_self_attention_layer_norm": {
            "scale": stack(lambda own: own["post_attention_layernorm"])
        },
    }
    decoder = {
        "layers": layers,
        "decoder_norm": {"scale": params["model"]["norm"]},
        "logits_dense": {"kernel": params["lm_head"].T},
    }
    embedder = {"embedding": params["model"]["embed_tokens"]}
    return {"params": {"decoder": decoder, "token_embedder": embedder}}


def flax_layers(params: Any) -> dict[str, Any]:
    """Hugging Face's names on Flax layers."""

    def convert(name: str, node: Any) -> Any:
        if isinstance(node, dict):
            return {key: convert(key, child) for key, child in node.items()}
        if name.endswith("norm"):
            return {"scale": node}
        return {"embedding": node} if name == "embed_tokens" else {"kernel": node.T}

    return convert("", params)


def with_stacked_layers(node: Any, axis: int) -> Any:
    """The tree with one array where it has one for each layer."""
    if not isinstance(node, dict):
        return node
    if all(str(key).isdigit() for key in node):
        return jax.tree.map(lambda *layers: jnp.stack(layers, axis), *node.values())
    return {key: with_stacked_layers(child, axis) for key, child in node.items()}


def llama(params: Any) -> dict[str, Any]:
    """The engine's tree of a Llama: the same without norms of heads."""

    def without(node: Any) -> Any:
        if not isinstance(node, dict):
            return node
        return {k: without(v) for k, v in node.items() if k not in ("q_norm", "k_norm")}

    return without(params)


def maxtext_llama(params: Any, *, pairs: bool = True) -> dict[str, Any]:
    """MaxText's, with the halves of rotated heads interleaved and the queries' scale folded in."""
    tree = maxtext(_with_norms(params))
    attention = tree["params"]["decoder"]["layers"]["self_attention"]
    del attention["query_norm"], attention["key_norm"]
    for name in ("query", "key"):
        kernel = attention[name]["kernel"]
        if pairs:
            first, second = np.split(np.asarray(kernel), 2, axis=-1)
            kernel = np.stack([first, second], axis=-1).reshape(kernel.shape)
        attention[name]["kernel"] = kernel / D**0.5 if name == "query" else kernel
    return tree


def skyrl_llama(params: Any) -> dict[str, Any]:
    """Kernels ``[L, in, out]``."""

    def convert(name: str, node: Any) -> Any:
        if isinstance(node, dict):
            return {key: convert(key, child) for key, child in node.items()}
        if name.endswith("norm"):
            return {"weight": node}
        return {"embedding": node} if name == "embed_tokens" else {"kernel": node.T}

    tree = convert("", params)
    layers = with_stacked_layers({"layers": tree["model"].pop("layers")}, axis=0)
    return {**tree, "model": {**tree["model"], "layers": {"_stacked": layers["layers"]}}}


def skyrl_qwen3(params: Any) -> dict[str, Any]:
    """The same with queries, keys and values in one kernel, head by head, and gates with ups."""
    tree = skyrl_llama(params)
    layers = tree["model"]["layers"]["_stacked"]
    attention, mlp = layers["self_attn"], layers["mlp"]
    q, k, v = (np.asarray(attention.pop(name)["kernel"]) for name in HEADS)
    heads: list[Any] = []
    for key in range(K):
        queries = H // K * D
        heads += [q[..., key * queries : (key + 1) * queries]]
        heads += [each[..., key * D : (key + 1) * D] for each in (k, v)]
    attention["qkv_proj"] = {"kernel": jnp.asarray(np.concatenate(heads, axis=-1))}
    gate, up = (np.asarray(mlp.pop(name)["kernel"]) for name in ("gate_proj", "up_proj"))
    both = np.empty((*gate.shape[:-1], 2 * gate.shape[-1]), gate.dtype)
    both[..., ::2], both[..., 1::2] = gate, up
    mlp["gate_up_proj"] = {"kernel": jnp.asarray(both)}
    return tree


def _with_norms(params: Any) -> Any:
    layers = {
        i: layer | {"self_attn": layer["self_attn"] | {"q_norm": np.ones(D), "k_norm": np.ones(D)}}
        for i, layer in params["model"]["layers"].items()
    }
    return params | {"model": params["model"] | {"layers": layers}}
