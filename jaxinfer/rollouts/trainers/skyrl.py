"""SkyRL's JAX tree: kernels ``[in, out]``, all layers in one array, some projections fused."""

from jaxinfer.model.config import ModelConfig
from jaxinfer.rollouts.sources import ParamSource, Table

STACKED_AXIS = 0
_LAYERS = "model.layers._stacked"
_ATTENTION, _MLP = f"{_LAYERS}.self_attn", f"{_LAYERS}.mlp"

LLAMA: Table = {
    "model.embed_tokens": ParamSource("model.embed_tokens.embedding"),
    "model.norm": ParamSource("model.norm.weight"),
    "lm_head": ParamSource("lm_head.kernel", (1, 0)),
    "input_layernorm": ParamSource(f"{_LAYERS}.input_layernorm.weight"),
    "post_attention_layernorm": ParamSource(f"{_LAYERS}.post_attention_layernorm.weight"),
    "q_proj": ParamSource(f"{_ATTENTION}.q_proj.kernel", (1, 0)),
    "k_proj": ParamSource(f"{_ATTENTION}.k_proj.kernel", (1, 0)),
    "v_proj": ParamSource(f"{_ATTENTION}.v_proj.kernel", (1, 0)),
    "o_proj": ParamSource(f"{_ATTENTION}.o_proj.kernel", (1, 0)),
    "gate_proj": ParamSource(f"{_MLP}.gate_proj.kernel", (1, 0)),
    "up_proj": ParamSource(f"{_MLP}.up_proj.kernel", (1, 0)),
    "down_proj": ParamSource(f"{_MLP}.down_proj.kernel", (1, 0)),
}


def qwen3(config: ModelConfig) -> Table:
    """Qwen3's: each key head lies behind its queries, each row of up_proj behind gate_proj's."""
    groups = config.num_key_value_heads
    queries = config.num_attention_heads // groups
    heads = (config.hidden_size, groups, queries + 2, config.head_dim)
    pairs = (config.hidden_size, config.intermediate_size, 2)

    def head(start: int, end: int) -> ParamSource:
        path, order = f"{_ATTENTION}.qkv_proj.kernel", (1, 2, 3, 0)
        return ParamSource(path, order, (start, end), reshape=True, split=heads, part_axis=1)

    def row(start: int) -> ParamSource:
        path, part = f"{_MLP}.gate_up_proj.kernel", (start, start + 1)
        return ParamSource(path, (1, 2, 0), part, reshape=True, split=pairs, part_axis=1)

    return LLAMA | {
        "q_norm": ParamSource(f"{_ATTENTION}.q_norm.weight"),
        "k_norm": ParamSource(f"{_ATTENTION}.k_norm.weight"),
        "q_proj": head(0, queries),
        "k_proj": head(queries, queries + 1),
        "v_proj": head(queries + 1, queries + 2),
        "gate_proj": row(0),
        "up_proj": row(1),
    }
