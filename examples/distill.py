"""A student learns from a teacher's rollouts; engines that have nothing to do sleep.

Run it: `pip install jaxinfer optax` and `python examples/distill.py --steps 30`. The teacher is the
bundled model, the student the same model with noise on its weights. A step is:

1. the teacher wakes up, completes prompts with log-probabilities, and sleeps (weights on the host);
2. the student's trainer, with the memory to itself, takes a gradient step on these tokens;
3. the student's engine wakes up, takes the new weights, completes the prompts, and sleeps again
   without keeping anything: its next weights come from the trainer.
"""

import argparse
import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

import jaxinfer
from jaxinfer import LLM, ModelConfig, ParamsMapping, Rollouts, SamplingParams, forward, load_params

PROMPTS = [
    "Once upon a time",
    "The little dog",
    "One day, a girl",
    "The sun was",
    "Tom and his friend",
    "In the garden",
    "A bird sat",
    "Mother said",
]
TOKENS = 32  # of each completion
WIDTHS = (16, TOKENS)  # of the arrays of prompts and completions


class Progress(NamedTuple):
    """What a step brought.

    Attributes:
        step: from 1.
        kl: an estimate of KL(teacher || student) a token of held-out rollouts, in nats, after
            the step.
        agreement: share of the held-out tokens that the student thinks likeliest.
        text: what the student's engine makes of the first prompt, after the step.
    """

    step: int
    kl: float
    agreement: float
    text: str


def student_logits(params, config: ModelConfig, rollouts: Rollouts) -> jax.Array:
    """float32 ``[rows, completion, V]``: the logits that each completion token was drawn from."""
    tokens = jnp.concatenate([rollouts.prompt_ids, rollouts.completion_ids], axis=1)
    mask = jnp.concatenate([rollouts.prompt_mask, rollouts.completion_mask], axis=1)
    positions = jnp.maximum(jnp.cumsum(mask, axis=1, dtype=jnp.int32) - 1, 0)
    logits = forward(params, config, tokens, positions=positions, attention_mask=mask)
    return logits[:, -rollouts.completion_ids.shape[1] - 1 : -1]


def loss_and_agreement(params, config: ModelConfig, rollouts: Rollouts):
    """The estimate of KL(teacher || student), and how often the student would choose alike.

    With r = p_student / p_teacher, the mean of r - 1 - log r over the teacher's tokens is that
    divergence, as is the mean of -log r: but it is never negative, varies less, and its gradient is
    zero where both agree (http://joschu.net/blog/kl-approx.html).
    """
    logits = student_logits(params, config, rollouts)
    chosen, mask = rollouts.completion_ids, rollouts.completion_mask
    scores = jax.nn.log_softmax(logits.astype(jnp.float32))
    logprobs = jnp.take_along_axis(scores, chosen[..., None], axis=2)[..., 0]
    count = mask.sum(dtype=jnp.float32)
    ratio = jnp.where(mask, logprobs - rollouts.logprobs, 0.0)
    kl = (jnp.exp(ratio) - 1 - ratio).sum() / count
    agreement = (mask & (logits.argmax(-1) == chosen)).sum(dtype=jnp.float32) / count
    return kl, agreement


evaluate = jax.jit(loss_and_agreement, static_argnums=1)


@functools.partial(jax.jit, static_argnums=(0, 1), donate_argnums=(2, 3))
def train_step(config: ModelConfig, optimizer, params, state, rollouts: Rollouts):
    """One step of the optimizer; parameters and its state are updated in place."""
    grads, _ = jax.grad(loss_and_agreement, has_aux=True)(params, config, rollouts)
    updates, state = optimizer.update(grads, state, params)
    return optax.apply_updates(params, updates), state


def with_noise(params, scale: float):
    """The parameters, each moved by a share of its own spread."""
    leaves, tree = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(0), len(leaves))
    moved = [
        leaf + scale * leaf.std() * jax.random.normal(key, leaf.shape, leaf.dtype)
        for leaf, key in zip(leaves, keys, strict=True)
    ]
    return jax.tree.unflatten(tree, moved)


def distill(
    steps: int, prompts: Sequence[str] = PROMPTS, *, samples: int = 4, noise: float = 0.3
) -> Iterator[Progress]:
    """Train the student; yields what each step brought."""
    directory = Path(jaxinfer.__file__).parent / "assets" / "model"
    config = ModelConfig.from_directory(directory)
    params = with_noise(load_params(directory, config, dtype="float32"), noise)
    mapping = ParamsMapping.hugging_face(config)
    optimizer = optax.adamw(2e-5)
    state = optimizer.init(params)
    settings = {
        "dtype": "float32",
        "max_model_len": sum(WIDTHS),
        "max_num_seqs": len(prompts) * samples,
        "num_kv_blocks": 4 * len(prompts) * samples + 1,
        "compile_ahead": False,
        "show_progress": False,
    }
    drawn = SamplingParams(temperature=1.0, max_tokens=TOKENS)
    greedy = SamplingParams(temperature=0.0, max_tokens=TOKENS)
    with (
        LLM(**settings) as teacher,
        LLM(params=params, mapping=mapping, config=config, tokenizer=directory, **settings) as own,
    ):
        held_out = teacher.rollout(prompts, drawn.clone(seed=0), n=samples, pad_to=WIDTHS)
        teacher.sleep()
        own.sleep(level=2)
        for step in range(1, steps + 1):
            teacher.wake_up()
            rollouts = teacher.rollout(prompts, drawn.clone(seed=step), n=samples, pad_to=WIDTHS)
            teacher.sleep(level=1)

            params, state = train_step(config, optimizer, params, state, rollouts)
            kl, agreement = evaluate(params, config, held_out)

            own.wake_up(["weights"])
            own.update_params(params, mapping)
            own.wake_up(["kv_cache"])
            (output,) = own.generate(prompts[0], greedy, use_tqdm=False)
            own.sleep(level=2)
            yield Progress(step, float(kl), float(agreement), output.outputs[0].text)


def main() -> None:
    """Distil, and print a line a step."""
    parser = argparse.ArgumentParser(description="distil the bundled model into a noisy copy")
    parser.add_argument("--steps", type=int, default=30)
    for each in distill(parser.parse_args().steps):
        print(
            f"step {each.step:3d}  KL {each.kl:6.3f} nats  agreement {each.agreement:5.1%}  "
            f"{PROMPTS[0]}{each.text!r}",
            flush=True,
        )


if __name__ == "__main__":
    main()
