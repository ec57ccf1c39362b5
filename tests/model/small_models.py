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


def build(seed: int = 0, family: str = "Qwen3", **changes: Any) -> Any:
    """A causal model of transformers in float32, all random: norms and biases, too."""
    torch.manual_seed(seed)
    config = getattr(transformers, f"{family}Config")(**(_SMALL | changes))
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
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
