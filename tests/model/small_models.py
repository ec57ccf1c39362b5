"""Small random models, made by transformers so that the reference itself writes what we read."""

from pathlib import Path
from typing import Any

from tests.lazy import torch, transformers

YARN = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}
_SMALL = {
    "vocab_size": 384,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0},
    "tie_word_embeddings": False,
    # Ten times the usual spread: logits of a few units, so that greedy choices mean something.
    "initializer_range": 0.2,
    "eos_token_id": 2,
}

# Name -> what differs from _SMALL. Every ratio of H to K, tied and not, D other than E / H.
VARIANTS: dict[str, dict[str, Any]] = {
    "untied-gqa2": {},
    "tied-gqa1": {"tie_word_embeddings": True, "num_key_value_heads": 8},
    "gqa4-wide-heads": {"num_key_value_heads": 2, "head_dim": 32},
    "tied-gqa8": {"num_key_value_heads": 1, "tie_word_embeddings": True},
    "yarn": {"rope_parameters": YARN},
    "yarn-mscale": {
        "rope_parameters": YARN | {"mscale": 0.8, "mscale_all_dim": 0.5, "truncate": False}
    },
    "biases": {"attention_bias": True, "num_attention_heads": 4, "num_key_value_heads": 2},
}


LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
# Llamas: all have D = 64, as the smallest published ones.
LLAMAS: dict[str, dict[str, Any]] = {
    "untied": {"num_attention_heads": 4, "num_key_value_heads": 2},
    "tied-gqa3": {
        "hidden_size": 96,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "tie_word_embeddings": True,
    },
    "llama3-scaling": {"rope_parameters": LLAMA3},
    "yarn": {"rope_parameters": YARN},
    "attention-biases": {"attention_bias": True, "tie_word_embeddings": True},
    "all-biases": {"attention_bias": True, "mlp_bias": True, "rope_parameters": LLAMA3},
}


# Widths of heads, ratios of H to K, tied and not; all split over 4 devices.
_SHAPES: list[dict[str, Any]] = [
    {"num_attention_heads": 4, "num_key_value_heads": 2},
    {"num_attention_heads": 4, "num_key_value_heads": 4, "tie_word_embeddings": True},
    {"hidden_size": 128, "num_attention_heads": 8, "num_key_value_heads": 2},
    {"num_attention_heads": 4, "num_key_value_heads": 1, "tie_word_embeddings": True},
    {"hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2},
    {"num_attention_heads": 8, "num_key_value_heads": 4, "num_hidden_layers": 3},
]
_LONGROPE: dict[str, Any] = {
    "rope_type": "longrope",
    "rope_theta": 10_000.0,
    "short_factor": [1.0, 1.1, 1.3, 1.5, 2.0, 2.5],
    "long_factor": [1.0, 1.4, 2.0, 4.0, 8.0, 16.0],
}
_GROWING = {"rope_parameters": YARN | {"llama_4_scaling_beta": 0.3}}
_EXPERTS: dict[str, Any] = {
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "norm_topk_prob": True,
}
# What differs from _SHAPES in each, by family; all have heads of E / H.
_OF_FAMILIES: dict[str, list[dict[str, Any]]] = {
    "Qwen2": [{}, {}, {"rope_parameters": YARN}, {}, {}, {}],
    "Mistral": [{"head_dim": 32}, {"head_dim": 8}, {"rope_parameters": YARN}, {}, {}, {}],
    "Ministral3": [_GROWING, {"head_dim": 32} | _GROWING, _GROWING, _GROWING, _GROWING, _GROWING],
    "SmolLM3": [
        {"num_hidden_layers": 5},
        {"no_rope_layers": [0, 1]},
        {"rope_parameters": YARN, "no_rope_layers": [1, 0]},
        {"attention_bias": True, "mlp_bias": True, "no_rope_layer_interval": 2},
        {"no_rope_layers": [0, 0]},
        {"no_rope_layer_interval": 3},
    ],
    "Phi3": [
        {},
        {"rope_parameters": {"rope_theta": 10_000.0, "partial_rotary_factor": 0.75}},
        {  # longer than the original context: at once, or transformers changes rotations midway
            "rope_parameters": _LONGROPE | {"partial_rotary_factor": 0.75},
            "original_max_position_embeddings": 4,
        },
        {  # no longer
            "rope_parameters": _LONGROPE | {"partial_rotary_factor": 0.75, "factor": 4.0},
            "original_max_position_embeddings": 512,
        },
        {"rope_parameters": {"rope_theta": 10_000.0, "partial_rotary_factor": 0.5}},
        {"sliding_window": 4096},
    ],
    "Olmo2": [{}, {}, {"rope_parameters": YARN}, {"attention_bias": True}, {}, {}],
    "Qwen3Moe": [
        _EXPERTS,
        _EXPERTS | {"norm_topk_prob": False},
        _EXPERTS | {"mlp_only_layers": [0], "rope_parameters": YARN},
        _EXPERTS | {"decoder_sparse_step": 2, "attention_bias": True},
        _EXPERTS | {"num_experts_per_tok": 8, "head_dim": 32},
        _EXPERTS | {"num_experts_per_tok": 1, "norm_topk_prob": False, "mlp_only_layers": [1]},
    ],
    "Qwen3VL": [{}, {}, {"head_dim": 32}, {"attention_bias": True}, {}, {}],
    "Mistral3": [_GROWING, _GROWING, {"model_type": "mistral"}, _GROWING, _GROWING, _GROWING],
}
FAMILIES = {
    f"{family}-{i}": {"family": family, "pad_token_id": 0, "bos_token_id": 1} | _SHAPES[i] | changes
    for family, variants in _OF_FAMILIES.items()
    for i, changes in enumerate(variants)
}
_EYES: dict[str, dict[str, Any]] = {
    "Qwen3VL": {
        "depth": 1,
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_heads": 2,
        "out_hidden_size": 64,
        "deepstack_visual_indexes": [0],
        "num_position_embeddings": 16,
    },
    "Mistral3": {
        "model_type": "pixtral",
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 28,
        "patch_size": 14,
        "head_dim": 16,
    },
}


def config(family: str = "Qwen3", **changes: Any) -> Any:
    """A config of transformers for a small model.

    `head_dim` is E / H where nothing else is asked for, and 16 in a Qwen3.
    """
    fields = _SMALL | changes
    width = fields["hidden_size"] / _SMALL["hidden_size"]
    fields["initializer_range"] *= width**-0.5  # sums of more terms, no larger
    if family != "Qwen3" and "head_dim" not in changes:
        fields["head_dim"] = fields["hidden_size"] // fields["num_attention_heads"]
    if family in _EYES:
        text = {"model_type": "ministral3"} | fields if family == "Mistral3" else fields
        tied = fields["tie_word_embeddings"]
        fields = {"text_config": text, "vision_config": _EYES[family], "tie_word_embeddings": tied}
    return getattr(transformers, f"{family}Config")(**fields)


def build(seed: int = 0, family: str = "Qwen3", head: str = "", **changes: Any) -> Any:
    """A model of transformers in float32, all random: norms and biases, too."""
    torch.manual_seed(seed)
    kind = head or ("ConditionalGeneration" if family in _EYES else "CausalLM")
    model = getattr(transformers, f"{family}For{kind}")(config(family, **changes)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter += 0.2 * torch.randn_like(parameter)
    return model


def save(directory: Path, seed: int = 0, **changes: Any) -> Any:
    """Build one, write it with ``save_pretrained``, and return it."""
    dtype = changes.pop("dtype", None)
    model = build(seed, **changes)
    if dtype is not None:
        model = model.to(dtype)
    model.save_pretrained(directory)
    return model


def save_classifier(directory: Path, seed: int = 0, **changes: Any) -> Any:
    """`save` a classifier; its vocabulary has the ids of the small tokenizer."""
    fields = {"vocab_size": 512, "pad_token_id": 0} | changes
    return save(directory, seed, head="SequenceClassification", **fields)
