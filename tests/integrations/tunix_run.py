"""A GRPO run of tunix on the bundled model: for tests and for the benchmark."""

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxinfer.model.checkpoint.hub import BUNDLED_MODEL

PROMPTS = ("Once upon a time", "One day, a small fox", "Long ago, a brave owl", "One day, a bear")


@contextlib.contextmanager
def third_party_warnings() -> Iterator[None]:
    """Tunix and what it imports warn of their own deprecations."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def make_mesh(fsdp: int = 1, tp: int = 1) -> Any:
    """Devices as tunix names them."""
    devices = np.array(jax.devices()[: fsdp * tp]).reshape(fsdp, tp)
    return jax.sharding.Mesh(devices, ("fsdp", "tp"))


def make_model(mesh: Any) -> Any:
    """The bundled model as tunix's `Qwen3`, in float32."""
    from tunix.models.qwen3 import model, params

    config = model.ModelConfig(
        num_layers=4,
        vocab_size=2048,
        embed_dim=256,
        hidden_dim=512,
        num_heads=4,
        head_dim=128,
        num_kv_heads=2,
        rope_theta=1_000_000,
        norm_eps=1e-6,
        use_tied_embedding=True,
    )
    with mesh:
        return params.create_model_from_safe_tensors(str(BUNDLED_MODEL), config, mesh, jnp.float32)


def with_adapters(model: Any, mesh: Any, rank: int = 4, alpha: float = 8.0) -> Any:
    """The model with LoRA adapters of qwix beside all projections, which share its weights."""
    import qwix
    from flax import nnx

    targets = ".*(q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj)"
    provider = qwix.LoraProvider(module_path=targets, rank=rank, alpha=alpha)
    with mesh:
        return qwix.apply_lora_to_model(
            model, provider, **model.get_model_input(), rngs=nnx.Rngs(0)
        )


def rollout_config(**changes: Any) -> Any:
    """Completions of at most 32 tokens."""
    from tunix.rl.rollout.base_rollout import RolloutConfig

    defaults = {
        "max_tokens_to_generate": 32,
        "max_prompt_length": 16,
        "kv_cache_size": 64,
        "temperature": 0.9,
        "return_logprobs": True,
    }
    return RolloutConfig(**(defaults | changes))


def make_learner(
    engine: Any,
    num_steps: int,
    num_prompts: int,
    num_generations: int,
    *,
    lora_alpha: float | None = None,
    learning_rate: float = 1e-4,
    **changes: Any,
) -> Any:
    """A `GRPOLearner` whose reward is the number of sentences.

    Args:
        engine: of `ClusterConfig.rollout_engine`.
        num_steps: updates of the weights.
        num_prompts: of each step.
        num_generations: of each prompt.
        lora_alpha: train adapters of it; None trains all weights.
        learning_rate: AdamW's.
        changes: fields of `RolloutConfig`.
    """
    from transformers import AutoTokenizer
    from tunix.rl import rl_cluster
    from tunix.rl.grpo.grpo_learner import GRPOConfig, GRPOLearner

    mesh = make_mesh()
    roles = (rl_cluster.Role.ACTOR, rl_cluster.Role.REFERENCE, rl_cluster.Role.ROLLOUT)
    config = rl_cluster.ClusterConfig(
        role_to_mesh=dict.fromkeys(roles, mesh),
        rollout_engine=engine,
        offload_to_cpu=False,
        training_config=rl_cluster.RLTrainingConfig(
            actor_optimizer=optax.adamw(learning_rate),
            eval_every_n_steps=num_steps + 1,
            max_steps=num_steps,
            mini_batch_size=num_prompts,
            train_micro_batch_size=num_prompts,
        ),
        rollout_config=rollout_config(**changes),
    )
    reference = make_model(mesh)
    actor = make_model(mesh)
    if lora_alpha is not None:
        actor = with_adapters(reference, mesh, alpha=lora_alpha)
    cluster = rl_cluster.RLCluster(
        actor=actor,
        reference=reference,
        tokenizer=AutoTokenizer.from_pretrained(str(BUNDLED_MODEL)),
        cluster_config=config,
    )
    return GRPOLearner(
        rl_cluster=cluster,
        reward_fns=lambda prompts, completions, **_: [float(c.count(".")) for c in completions],
        algo_config=GRPOConfig(num_generations=num_generations, num_iterations=1, beta=0.04),
    )


def batches(num_steps: int, num_prompts: int) -> list[dict[str, np.ndarray]]:
    """The data of a run."""
    chosen = [PROMPTS[i % len(PROMPTS)] for i in range(num_prompts)]
    return [{"prompts": np.array(chosen)} for _ in range(num_steps)]
