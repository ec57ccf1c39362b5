"""MaxText's tree: kernels ``[in, heads, D]``, all layers in one array or a subtree for each."""

from dataclasses import replace

from jaxinfer.model.config import ModelConfig
from jaxinfer.rollouts.sources import ParamSource, Table

_LAYER = "decoder.layers_{layer}"
_ATTENTION, _MLP = f"{_LAYER}.self_attention", f"{_LAYER}.mlp"

QWEN3: Table = {
    "model.embed_tokens": ParamSource("token_embedder.embedding"),
    "model.norm": ParamSource("decoder.decoder_norm.scale"),
    "lm_head": ParamSource("decoder.logits_dense.kernel", (1, 0)),
    "input_layernorm": ParamSource(f"{_LAYER}.pre_self_attention_layer_norm.scale"),
    "post_attention_layernorm": ParamSource(f"{_LAYER}.post_self_attention_layer_norm.scale"),
    "q_norm": ParamSource(f"{_ATTENTION}.query_norm.scale"),
    "k_norm": ParamSource(f"{_ATTENTION}.key_norm.scale"),
    "q_proj": ParamSource(f"{_ATTENTION}.query.kernel", (1, 2, 0), reshape=True),
    "k_proj": ParamSource(f"{_ATTENTION}.key.kernel", (1, 2, 0), reshape=True),
    "v_proj": ParamSource(f"{_ATTENTION}.value.kernel", (1, 2, 0), reshape=True),
    "o_proj": ParamSource(f"{_ATTENTION}.out.kernel", (2, 0, 1), reshape=True),
    "gate_proj": ParamSource(f"{_MLP}.wi_0.kernel", (1, 0)),
    "up_proj": ParamSource(f"{_MLP}.wi_1.kernel", (1, 0)),
    "down_proj": ParamSource(f"{_MLP}.wo.kernel", (1, 0)),
}


def llama(config: ModelConfig, rope_type: str) -> Table:
    """Llama's: queries are divided by sqrt(D) in advance, and rotated as `rope_type` says.

    Raises:
        ValueError: a rotation that Llama has not.
    """
    dim = config.head_dim
    table = {name: source for name, source in QWEN3.items() if name not in ("q_norm", "k_norm")}
    table["q_proj"] = replace(table["q_proj"], scale=dim**0.5)
    if rope_type == "default":
        return table
    if rope_type != "llama3.1":
        raise ValueError(f'rope_type must be "llama3.1" or "default", got {rope_type!r}')
    # Rotated numbers are neighbours there, and half a head apart in the engine.
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, count in heads.items():
        pairs = (config.hidden_size, count, dim // 2, 2)
        table[name] = replace(table[name], split=pairs, transpose=(1, 3, 2, 0))
    return table
