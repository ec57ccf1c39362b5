"""MaxText and SkyRL compute what the engine computes of the arrays that mappings make of theirs.

Skipped where the packages are not installed. Each needs an environment of its own, with jaxinfer,
pytest, pytest-xdist, hypothesis and beartype: for SkyRL `pip install 'skyrl[jax]==0.4.0' torch
accelerate`; for MaxText `pip install --no-deps maxtext==0.2.5`, and aqtp drjax grain omegaconf
pathwaysutils pillow pydantic qwix sentencepiece sympy tiktoken tokamax transformers, since its
extras bring all of CUDA.
"""

import importlib.util
import os
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxinfer import ModelConfig, ParamsMapping, ShardingRules, forward
from jaxinfer.model.rope_scaling import Llama3RopeScaling
from jaxinfer.rollouts.conversion import MappedParams

pytestmark = [
    pytest.mark.optimized,
    # Deprecations of the trainers and of what they import.
    pytest.mark.filterwarnings("ignore"),
]
needs_maxtext = pytest.mark.skipif(
    importlib.util.find_spec("maxtext") is None, reason="needs maxtext"
)
needs_skyrl = pytest.mark.skipif(importlib.util.find_spec("skyrl") is None, reason="needs skyrl")
QWEN3 = ModelConfig(
    vocab_size=512,
    hidden_size=96,
    intermediate_size=160,
    num_hidden_layers=3,
    num_attention_heads=6,
    num_key_value_heads=2,
    head_dim=16,
    rms_norm_eps=1e-6,
    rope_theta=1e6,
    max_position_embeddings=64,
    tie_word_embeddings=False,
)
LLAMA = replace(QWEN3, model_type="llama", rms_norm_eps=1e-5, rope_theta=5e5)
TOKENS = np.random.default_rng(0).integers(0, 512, (1, 32)).astype(np.int32)


@pytest.fixture(autouse=True)
def _loose_promotion():
    """The trainers' own code mixes dtypes and ranks."""
    names = {"jax_numpy_dtype_promotion": "standard", "jax_numpy_rank_promotion": "allow"}
    before = {name: getattr(jax.config, name) for name in names}
    for name, value in names.items():
        jax.config.update(name, value)
    yield
    for name, value in before.items():
        jax.config.update(name, value)


def spread(model: nnx.Module) -> Any:
    """The state of a model whose parameters, norms too, were moved so that a mistake shows."""
    rng = np.random.default_rng(1)
    state = jax.tree.map(
        lambda x: x + jnp.asarray(rng.normal(0.0, 0.05, x.shape), x.dtype),
        nnx.state(model, nnx.Param),
    )
    nnx.update(model, state)
    return state


def check(state: Any, mapping: ParamsMapping, config: ModelConfig, logits: Any) -> None:
    params = MappedParams(state, mapping).make(config, None, None, ShardingRules())
    np.testing.assert_allclose(forward(params, config, jnp.asarray(TOKENS)), logits, atol=2e-5)


def maxtext(name: str, *settings: str) -> tuple[Any, Any]:
    import maxtext
    from maxtext.configs import pyconfig
    from maxtext.utils import model_creation_utils

    base = os.path.join(os.path.dirname(maxtext.__file__), "configs", "base.yml")
    sizes = {
        "base_num_decoder_layers": QWEN3.num_hidden_layers,
        "base_emb_dim": QWEN3.hidden_size,
        "base_mlp_dim": QWEN3.intermediate_size,
        "base_num_query_heads": QWEN3.num_attention_heads,
        "base_num_kv_heads": QWEN3.num_key_value_heads,
        "head_dim": QWEN3.head_dim,
        "vocab_size": QWEN3.vocab_size,
        "max_target_length": TOKENS.shape[1],
    }
    fixed = (
        "run_name=test override_model_config=true enable_checkpointing=false dtype=float32 "
        "weight_dtype=float32 matmul_precision=highest attention=dot_product "
        "per_device_batch_size=1 skip_jax_distributed_system=true logits_via_embedding=false"
    )
    given = [f"{key}={value}" for key, value in sizes.items()]
    config = pyconfig.initialize(
        ["", base, f"model_name={name}", *fixed.split(), *given, *settings]
    )
    model = model_creation_utils.from_config(config, jax.devices()[:1], rngs=nnx.Rngs(0))
    state = spread(model)
    positions, segments = np.arange(TOKENS.shape[1])[None], np.ones_like(TOKENS)
    logits = model(TOKENS, positions, decoder_segment_ids=segments, enable_dropout=False)
    return state, logits


@needs_maxtext
@pytest.mark.parametrize(
    ("settings", "axis"),
    [(["param_scan_axis=1"], 1), (["param_scan_axis=0"], 0), (["scan_layers=false"], None)],
)
def test_maxtexts_qwen3(settings, axis):
    state, logits = maxtext("qwen3-8b", *settings)
    check(state, ParamsMapping.maxtext_qwen3(QWEN3, param_scan_axis=axis), QWEN3, logits)


@needs_maxtext
@pytest.mark.parametrize(
    ("name", "rope_type", "scaling"),
    [
        ("llama3.1-8b", "llama3.1", Llama3RopeScaling(8.0, 1.0, 4.0, 8192)),
        ("llama3-8b", "default", None),
    ],
)
def test_maxtexts_llama(name, rope_type, scaling):
    state, logits = maxtext(name)
    mapping = ParamsMapping.maxtext_llama(LLAMA, rope_type=rope_type)
    check(state, mapping, replace(LLAMA, rope_scaling=scaling), logits)


@needs_skyrl
@pytest.mark.parametrize("config", [QWEN3, LLAMA, replace(QWEN3, tie_word_embeddings=True)])
def test_skyrls_models(config):
    import transformers
    from skyrl.tx.models import configs, llama3, qwen3

    kind = "Qwen3" if config.model_type == "qwen3" else "Llama"
    sizes = {
        name: getattr(config, name)
        for name in (
            "vocab_size",
            "hidden_size",
            "intermediate_size",
            "num_hidden_layers",
            "num_attention_heads",
            "num_key_value_heads",
            "head_dim",
            "rms_norm_eps",
            "tie_word_embeddings",
        )
    }
    rope = {"rope_theta": config.rope_theta, "rope_type": "default"}
    base = getattr(transformers, f"{kind}Config")(rope_parameters=rope, **sizes)
    own = configs.Qwen3Config if kind == "Qwen3" else configs.Llama3Config
    theirs = own(base, max_lora_adapters=2, max_lora_rank=4, shard_attention_heads=True)
    make = qwen3.Qwen3ForCausalLM if kind == "Qwen3" else llama3.Llama3ForCausalLM
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]).reshape(1, 1, 1), ("fsdp", "ep", "tp"))
    with jax.set_mesh(mesh):
        model = make(theirs, dtype=jnp.float32, rngs=nnx.Rngs(0))
        state = spread(model)
        output = model(TOKENS, attention_mask=np.ones_like(TOKENS))
        logits = model.compute_logits(output.last_hidden_state)
    mapping = ParamsMapping.skyrl_qwen3 if kind == "Qwen3" else ParamsMapping.skyrl_llama
    check(jax.tree.map(np.asarray, state), mapping(config), config, logits)
