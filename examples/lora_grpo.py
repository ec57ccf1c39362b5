"""Reinforcement learning of LoRA adapters: python examples/lora_grpo.py

The bundled model learns to write four sentences in 32 tokens, as in `grpo.py`. But its weights stay
as they are, and are in memory once: the trainer and the engine hold the same arrays. Adam moves the
adapters' matrices alone, and each step hands the engine kilobytes. It needs optax:

    pip install jaxinfer optax
"""

import argparse
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxinfer import (
    LLM,
    ModelConfig,
    Rollouts,
    SamplingParams,
    Tokenizer,
    forward,
    load_params,
)
from jaxinfer.model.checkpoint.hub import BUNDLED_MODEL

try:
    import optax
except ImportError:
    raise SystemExit("this example needs optax: pip install optax") from None

PROMPTS = (
    "Once upon a time",
    "One day, a small fox",
    "Long ago, a tiny squirrel",
    "One day, a kind bear",
    "Once upon a time, in a village",
    "Long ago, a brave owl",
    "One day, a gentle frog",
    "Once upon a time, there was a lion",
)
SENTENCES, MAX_TOKENS, PROMPT_WIDTH = 4, 32, 16
ENDS = [2039, 2041]
"""The end tokens of the bundled model, which the engine does not know of given weights."""
RANK, SCALE = 4, 2.0
ADAPTED = {
    "self_attn": ("q_proj", "k_proj", "v_proj", "o_proj"),
    "mlp": ("gate_proj", "up_proj", "down_proj"),
}


@dataclass(frozen=True)
class Step:
    """What a step showed, before its update.

    Attributes:
        reward: mean over completions, from 0 to 1.
        gap: mean |log-probability of the rollout - of the trainer| a token, in nats.
        moved_kb: of the adapter that the engine got.
        seconds: of rollout, update and hand-over.
    """

    reward: float
    gap: float
    moved_kb: float
    seconds: float


def new_adapter(params: Any, rng: np.random.Generator) -> dict[str, Any]:
    """Matrices ``lora_A [r, in]`` and ``lora_B [out, r]`` of all projections; B is zero."""

    def pair(weight: jax.Array) -> dict[str, jax.Array]:
        outputs, inputs = weight.shape
        a = rng.normal(size=(RANK, inputs)) / np.sqrt(inputs)
        return {"lora_A": jnp.asarray(a, jnp.float32), "lora_B": jnp.zeros((outputs, RANK))}

    layers = {
        index: {
            part: {name: pair(layer[part][name]) for name in names}
            for part, names in ADAPTED.items()
        }
        for index, layer in params["model"]["layers"].items()
    }
    return {"model": {"layers": layers}}


def merged(weights: Any, adapter: Any) -> Any:
    """The model's tree with an adapter added: what `forward` differentiates."""
    if "lora_A" in adapter:
        return weights + SCALE * adapter["lora_B"] @ adapter["lora_A"]
    return weights | {name: merged(weights[name], each) for name, each in adapter.items()}


def rewards_of(tokenizer: Tokenizer, rollouts: Rollouts) -> np.ndarray:
    """1 for each completion of exactly four sentences (their last characters, that is), else 0."""
    rows = zip(rollouts.completion_ids, rollouts.lengths, strict=True)
    texts = [tokenizer.decode(ids[:length].tolist()) for ids, length in rows]
    return np.array([len(re.findall(r"[.!?]", text)) == SENTENCES for text in texts], np.float32)


def advantages(rewards: np.ndarray, n: int) -> np.ndarray:
    """Rewards against the n of the same prompt: less their mean, over their deviation."""
    groups = rewards.reshape(-1, n)
    spread = groups.std(axis=1, keepdims=True) + 1e-4
    return ((groups - groups.mean(axis=1, keepdims=True)) / spread).reshape(-1)


def loss(
    adapter: Any, params: Any, config: ModelConfig, rollouts: Rollouts, gains: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """GRPO's, and the gap between the log-probabilities of rollout and trainer."""
    tokens = jnp.concatenate([rollouts.prompt_ids, rollouts.completion_ids], axis=1)
    mask = jnp.concatenate([rollouts.prompt_mask, rollouts.completion_mask], axis=1)
    positions = jnp.maximum(jnp.cumsum(mask, axis=1, dtype=jnp.int32) - 1, 0)
    params = merged(params, adapter)
    logits = forward(params, config, tokens, positions=positions, attention_mask=mask)
    scores = jax.nn.log_softmax(logits[:, -MAX_TOKENS - 1 : -1])
    chosen = jnp.take_along_axis(scores, rollouts.completion_ids[..., None], axis=2)[..., 0]
    difference = jnp.where(rollouts.completion_mask, chosen - rollouts.logprobs, 0.0)
    total = rollouts.completion_mask.sum().astype(jnp.float32)
    # One update a rollout: ratios are 1 but for rounding, and have a gradient.
    gained = jnp.where(rollouts.completion_mask, jnp.exp(difference) * gains[:, None], 0.0)
    return -gained.sum() / total, jnp.abs(difference).sum() / total


def train(
    num_steps: int = 30,
    n: int = 16,
    learning_rate: float = 3e-3,
    say: Callable[[str], None] = print,
) -> list[Step]:
    """Run GRPO on the bundled model's adapters.

    Args:
        num_steps: updates of the adapters.
        n: completions of each prompt a step.
        learning_rate: Adam's.
        say: takes the line of each step.
    """
    rows, steps = len(PROMPTS) * n, []
    config = ModelConfig.from_directory(BUNDLED_MODEL)
    tokenizer = Tokenizer.from_directory(BUNDLED_MODEL)
    params = load_params(BUNDLED_MODEL, config, dtype="float32")
    adapter = new_adapter(params, np.random.default_rng(0))
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(learning_rate))

    @jax.jit
    def update(adapter: Any, state: Any, params: Any, rollouts: Rollouts, gains: Any) -> Any:
        gradient = jax.value_and_grad(loss, has_aux=True)
        (_, gap), gradients = gradient(adapter, params, config, rollouts, gains)
        changes, state = optimizer.update(gradients, state, adapter)
        return optax.apply_updates(adapter, changes), state, gap

    state = optimizer.init(adapter)
    with LLM(
        params=params,  # used as they are, without a copy
        config=config,
        tokenizer=tokenizer,
        enable_lora=True,
        max_lora_rank=RANK,
        max_model_len=PROMPT_WIDTH + MAX_TOKENS,
        max_num_seqs=rows,
        num_kv_blocks=1 + rows * 3,
        show_progress=False,
    ) as llm:
        say(f"the model has {num_bytes(params) / 2**20:.1f} MB")
        llm.load_adapter("policy", adapter, scale=SCALE)
        for number in range(1, num_steps + 1):
            start = time.perf_counter()
            sampling = SamplingParams(
                temperature=1.0, max_tokens=MAX_TOKENS, stop_token_ids=ENDS, seed=number
            )
            width = (PROMPT_WIDTH, MAX_TOKENS)
            rollouts = llm.rollout(
                list(PROMPTS), sampling, n=n, pad_to=width, lora_request="policy"
            )
            rewards = rewards_of(tokenizer, rollouts)
            gains = advantages(rewards, n)
            adapter, state, gap = update(adapter, state, params, rollouts, gains)
            llm.update_adapter("policy", adapter, scale=SCALE)
            moved, seconds = num_bytes(adapter) / 2**10, time.perf_counter() - start
            steps.append(Step(float(rewards.mean()), float(gap), moved, seconds))
            say(line(number, steps[-1]))
    return steps


def num_bytes(tree: Any) -> int:
    """The size of a tree's arrays."""
    return sum(leaf.nbytes for leaf in jax.tree.leaves(tree))


def line(number: int, step: Step) -> str:
    """A step on one line."""
    return (
        f"step {number:3d}  reward {step.reward:.3f}  gap {step.gap:.1e}  "
        f"moved {step.moved_kb:.0f} KB  {step.seconds:.2f} s"
    )


def main() -> None:
    """Train, and print a line a step."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--n", type=int, default=16, help="completions of each prompt")
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    args = parser.parse_args()
    train(args.steps, args.n, args.learning_rate)


if __name__ == "__main__":
    main()
