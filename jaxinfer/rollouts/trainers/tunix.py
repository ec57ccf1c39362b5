"""Tunix's tree: kernels ``[in, heads, D]``, a subtree for each layer."""

from jaxinfer.rollouts.sources import ParamSource, Table

_ATTENTION, _MLP = "layers.{layer}.attn", "layers.{layer}.mlp"

QWEN3: Table = {
    "model.embed_tokens": ParamSource("embedder.input_embedding"),
    "model.norm": ParamSource("final_norm.w"),
    "lm_head": ParamSource("lm_head.w", (1, 0)),
    "input_layernorm": ParamSource("layers.{layer}.input_layernorm.w"),
    "post_attention_layernorm": ParamSource("layers.{layer}.post_attention_layernorm.w"),
    "q_norm": ParamSource(f"{_ATTENTION}.q_norm.w"),
    "k_norm": ParamSource(f"{_ATTENTION}.k_norm.w"),
    "q_proj": ParamSource(f"{_ATTENTION}.q_proj.w", (1, 2, 0), reshape=True),
    "k_proj": ParamSource(f"{_ATTENTION}.k_proj.w", (1, 2, 0), reshape=True),
    "v_proj": ParamSource(f"{_ATTENTION}.v_proj.w", (1, 2, 0), reshape=True),
    "o_proj": ParamSource(f"{_ATTENTION}.o_proj.w", (2, 0, 1), reshape=True),
    "gate_proj": ParamSource(f"{_MLP}.gate_proj.kernel", (1, 0)),
    "up_proj": ParamSource(f"{_MLP}.up_proj.kernel", (1, 0)),
    "down_proj": ParamSource(f"{_MLP}.down_proj.kernel", (1, 0)),
}
