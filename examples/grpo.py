"""Reinforcement learning in one file: the bundled model learns four sentences in 32 tokens.

It usually writes two or three. GRPO with optax, in under five minutes on two CPU cores:

    pip install jaxinfer optax matplotlib  # matplotlib for the plot alone
    python examples/grpo.py --out grpo
"""

import argparse
import csv
import functools
import json
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxinfer import LLM, ModelConfig, ParamsMapping, Rollouts, SamplingParams, forward, load_params
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
SENTENCES = 4
MAX_TOKENS = 32
PROMPT_WIDTH = 16
TEMPERATURE = 1.0


@dataclass(frozen=True)
class Step:
    """What a step showed, before its update.

    Attributes:
        step: from 1.
        reward: mean over completions, from 0 to 1.
        length: mean, in tokens.
        entropy: mean of the model's next-token distributions, in nats.
        gap: mean |log-probability of the rollout - of the trainer| a token, in nats.
        seconds: of rollout, update and hand-over.
    """

    step: int
    reward: float
    length: float
    entropy: float
    gap: float
    seconds: float


def reward(text: str) -> float:
    """1 if the text has exactly four sentences (their last characters, that is), else 0."""
    return float(len(re.findall(r"[.!?]", text)) == SENTENCES)


def advantages(rewards: np.ndarray, n: int) -> np.ndarray:
    """Rewards ``[R]`` against the n of the same prompt: less their mean, over their deviation."""
    groups = rewards.reshape(-1, n)
    spread = groups.std(axis=1, keepdims=True)
    scaled = (groups - groups.mean(axis=1, keepdims=True)) / (spread + 1e-4)
    return scaled.reshape(-1).astype(np.float32)


def token_scores(params: Any, config: ModelConfig, rollouts: Rollouts) -> tuple[Any, Any]:
    """Log-probabilities of the completions' tokens and entropies there, both float32 ``[R, C]``."""
    tokens = jnp.concatenate([rollouts.prompt_ids, rollouts.completion_ids], axis=1)
    mask = jnp.concatenate([rollouts.prompt_mask, rollouts.completion_mask], axis=1)
    positions = jnp.maximum(jnp.cumsum(mask, axis=1, dtype=jnp.int32) - 1, 0)
    logits = forward(params, config, tokens, positions=positions, attention_mask=mask)
    width = rollouts.completion_ids.shape[1]
    scores = jax.nn.log_softmax(logits[:, -width - 1 : -1] / TEMPERATURE)
    chosen = jnp.take_along_axis(scores, rollouts.completion_ids[..., None], axis=2)[..., 0]
    return chosen, -(jnp.exp(scores) * scores).sum(axis=2)


def make_update(config: ModelConfig, optimizer: optax.GradientTransformation) -> Callable[..., Any]:
    """One compiled step of the optimizer; parameters and its state are donated."""

    def loss(params: Any, rollouts: Rollouts, gains: jax.Array) -> tuple[jax.Array, Any]:
        mask = rollouts.completion_mask.astype(jnp.float32)
        total = mask.sum()
        logprobs, entropy = token_scores(params, config, rollouts)
        difference = jnp.where(rollouts.completion_mask, logprobs - rollouts.logprobs, 0.0)
        ratio = jnp.exp(difference)  # one update a rollout: 1 but for rounding, with a gradient
        gained = (ratio * gains[:, None] * mask).sum() / total
        shown = {
            "entropy": (entropy * mask).sum() / total,
            "gap": jnp.abs(difference).sum() / total,
        }
        return -gained, shown

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def update(params: Any, state: Any, rollouts: Rollouts, gains: jax.Array) -> Any:
        (_, shown), gradients = jax.value_and_grad(loss, has_aux=True)(params, rollouts, gains)
        changes, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, changes), state, shown

    return update


def train(
    num_steps: int, n: int, learning_rate: float, say: Callable[[str], None] = print
) -> list[Step]:
    """Run GRPO on the bundled model.

    Args:
        num_steps: updates of the weights.
        n: completions of each prompt a step.
        learning_rate: Adam's.
        say: takes the line of each step.
    """
    rows = len(PROMPTS) * n
    steps = []
    with LLM(
        dtype="float32",
        max_model_len=PROMPT_WIDTH + MAX_TOKENS,
        max_num_seqs=rows,
        num_kv_blocks=1 + rows * 3,
        logprobs_mode="temperature_logprobs",
        show_progress=False,
    ) as llm:
        config = llm.model_config
        params = load_params(BUNDLED_MODEL, config, dtype="float32")
        # It copies: `update` donates the trainer's parameters, which the engine then can't share.
        mapping = ParamsMapping.hugging_face(config)
        optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(learning_rate))
        update, state = make_update(config, optimizer), optimizer.init(params)
        for number in range(1, num_steps + 1):
            start = time.perf_counter()
            sampling = SamplingParams(temperature=TEMPERATURE, max_tokens=MAX_TOKENS, seed=number)
            rollouts = llm.rollout(list(PROMPTS), sampling, n=n, pad_to=(PROMPT_WIDTH, MAX_TOKENS))
            rewards = np.array([reward(text) for text in texts(llm, rollouts)], np.float32)
            params, state, shown = update(params, state, rollouts, advantages(rewards, n))
            llm.update_params(params, mapping)
            step = Step(
                step=number,
                reward=float(rewards.mean()),
                length=float(rollouts.lengths.mean()),
                entropy=float(shown["entropy"]),
                gap=float(shown["gap"]),
                seconds=time.perf_counter() - start,
            )
            say(line(step))
            steps.append(step)
    return steps


def texts(llm: LLM, rollouts: Rollouts) -> list[str]:
    """The completions as texts; rollouts themselves are tokens."""
    tokenizer = llm.get_tokenizer()
    if tokenizer is None:
        raise ValueError("the engine has no tokenizer")
    return [
        tokenizer.decode(ids[:length].tolist())
        for ids, length in zip(rollouts.completion_ids, rollouts.lengths, strict=True)
    ]


def line(step: Step) -> str:
    """A step on one line."""
    return (
        f"step {step.step:3d}  reward {step.reward:.3f}  length {step.length:4.1f}  "
        f"entropy {step.entropy:.3f}  gap {step.gap:.1e}  {step.seconds:.2f} s"
    )


def save(steps: Sequence[Step], out: Path) -> None:
    """Write ``out.csv``, and the plot ``out.png`` with matplotlib, else ``out.txt``."""
    with out.with_suffix(".csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(asdict(steps[0])))
        writer.writeheader()
        writer.writerows(map(asdict, steps))
    names = ("reward", "length", "entropy", "gap")
    try:
        from matplotlib.figure import Figure
    except ImportError:
        text = "\n\n".join(text_plot(name, [getattr(s, name) for s in steps]) for name in names)
        out.with_suffix(".txt").write_text(text + "\n")
        print(text)
        return
    figure = Figure(figsize=(9, 6), layout="constrained")
    for axes, name in zip(figure.subplots(2, 2).flat, names, strict=True):
        axes.plot([s.step for s in steps], [getattr(s, name) for s in steps])
        axes.set_title(name)
        axes.set_xlabel("step")
    figure.savefig(out.with_suffix(".png"), dpi=120)


def text_plot(name: str, values: Sequence[float], height: int = 8, width: int = 60) -> str:
    """Values as dots in `height` lines, at most `width` wide."""
    shown = (
        [values[i * len(values) // width] for i in range(width)] if len(values) > width else values
    )
    low, high = min(shown), max(shown)
    level = [round((v - low) / ((high - low) or 1.0) * (height - 1)) for v in shown]
    rows = ["".join("*" if h == r else " " for h in level) for r in reversed(range(height))]
    return "\n".join([f"{name}: {low:.3g} to {high:.3g}, {len(values)} steps", *rows])


def main() -> None:
    """Train, print a line a step, save the curves."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--n", type=int, default=16, help="completions of each prompt")
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--out", type=Path, default=Path("grpo"), help="files, without a suffix")
    args = parser.parse_args()
    start = time.perf_counter()
    steps = train(args.steps, args.n, args.learning_rate)
    save(steps, args.out)
    print(json.dumps({"seconds": round(time.perf_counter() - start, 1), **asdict(steps[-1])}))


if __name__ == "__main__":
    main()
