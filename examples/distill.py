"""A student learns from a teacher's rollouts; engines that have nothing to do sleep.

Run it: `pip install jaxinfer optax` and `python examples/distill.py`. The teacher is the bundled
model, the student the same model under so much noise that it writes nonsense. A step is:

1. the teacher wakes up, completes prompts with log-probabilities, and sleeps (weights on the host);
2. the student's trainer, with the memory to itself, takes a gradient step on these tokens;
3. the student's engine wakes up, takes the new weights, completes the prompts, and sleeps again
   without keeping anything: its next weights come from the trainer.
"""

import argparse
import functools
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp

import jaxinfer
from jaxinfer import LLM, ModelConfig, ParamsMapping, Rollouts, SamplingParams, forward, load_params

try:
    import optax
except ImportError:
    raise SystemExit("this example needs optax: pip install optax") from None

PROMPTS = [
    "Once upon a time",
    "The little dog",
    "One day, a girl",
    "The sun was",
    "Tom and his friend",
    "In the garden",
    "A bird sat",
    "Mother said",
    "There was a small",
    "The boy wanted",
    "Every morning",
    "A big bear",
    "They went to",
    "Anna had a",
    "It was a cold",
    "The old man",
]
VALIDATION = [  # on these, learning rate, batch and noise were chosen
    "Lily saw a",
    "The cat was",
    "One night",
    "A little fish",
    "Ben and Mia",
    "At the park",
    "The rabbit",
    "Grandma made",
]
HELD_OUT = [  # and on these, what came of it is shown
    "Sam found a",
    "The duck",
    "In the forest",
    "A tiny mouse",
    "Dad gave",
    "On the farm",
    "The queen",
    "When it rained",
]
TOKENS = 32  # of each completion
WIDTHS = (16, TOKENS)  # of the arrays of prompts and completions


class Progress(NamedTuple):
    """What a step brought.

    Attributes:
        step: from 0, which is the student as it begins.
        kl: an estimate of KL(teacher || student) a token, in nats, after the step: of completions
            of prompts that training does not see.
        agreement: share of these tokens that the student thinks likeliest.
        text: what the student's engine makes of the first of these prompts, after the step.
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

    The mean of log p_teacher - log p_student over the teacher's tokens. Where both are near each
    other, r - 1 - log r with r = p_student / p_teacher varies less; but r has no bound, and the
    student begins far away (http://joschu.net/blog/kl-approx.html).
    """
    logits = student_logits(params, config, rollouts)
    chosen, mask = rollouts.completion_ids, rollouts.completion_mask
    scores = jax.nn.log_softmax(logits.astype(jnp.float32))
    logprobs = jnp.take_along_axis(scores, chosen[..., None], axis=2)[..., 0]
    count = mask.sum(dtype=jnp.float32)
    kl = jnp.where(mask, rollouts.logprobs - logprobs, 0.0).sum() / count
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
    steps: int,
    prompts: Sequence[str] = PROMPTS,
    held_out: Sequence[str] = HELD_OUT,
    *,
    samples: int = 4,
    noise: float = 1.0,
) -> Iterator[Progress]:
    """Train the student; yields how it begins, and what each step brought."""
    directory = Path(jaxinfer.__file__).parent / "assets" / "model"
    config = ModelConfig.from_directory(directory)
    params = with_noise(load_params(directory, config, dtype="float32"), noise)
    mapping = ParamsMapping.hugging_face(config)
    schedule = optax.warmup_cosine_decay_schedule(2e-4, 2e-3, min(3, steps // 4), steps)
    optimizer = optax.adam(schedule, b2=0.98)
    state = optimizer.init(params)
    rows = max(len(prompts), len(held_out)) * samples
    settings = {
        "dtype": "float32",
        "max_model_len": sum(WIDTHS),
        "max_num_seqs": rows,
        "num_kv_blocks": 4 * rows + 1,
        "compile_ahead": False,
        "show_progress": False,
    }
    drawn = SamplingParams(temperature=1.0, max_tokens=TOKENS)
    with (
        LLM(**settings) as teacher,
        LLM(params=params, mapping=mapping, config=config, tokenizer=directory, **settings) as own,
    ):
        unseen = teacher.rollout(held_out, drawn.clone(seed=0), n=samples, pad_to=WIDTHS)
        teacher.sleep()
        yield progress(0, own, evaluate(params, config, unseen), held_out[0])
        own.sleep(level=2)
        for step in range(1, steps + 1):
            teacher.wake_up()
            rollouts = teacher.rollout(prompts, drawn.clone(seed=step), n=samples, pad_to=WIDTHS)
            teacher.sleep(level=1)

            params, state = train_step(config, optimizer, params, state, rollouts)
            found = evaluate(params, config, unseen)

            own.wake_up(["weights"])
            own.update_params(params, mapping)
            own.wake_up(["kv_cache"])
            yield progress(step, own, found, held_out[0])
            own.sleep(level=2)


def progress(step: int, student: LLM, found: tuple[jax.Array, jax.Array], prompt: str) -> Progress:
    """What `evaluate` found, with a text by the student's engine."""
    greedy = SamplingParams(temperature=0.0, max_tokens=TOKENS)
    (output,) = student.generate(prompt, greedy, use_tqdm=False)
    return Progress(step, float(found[0]), float(found[1]), prompt + output.outputs[0].text)


def main() -> None:
    """Distil, and print a line a step."""
    parser = argparse.ArgumentParser(description="distil the bundled model into a noisy copy")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument(
        "--validation", action="store_true", help="show the prompts that settings are chosen on"
    )
    args = parser.parse_args()
    begin = time.perf_counter()
    for each in distill(args.steps, held_out=VALIDATION if args.validation else HELD_OUT):
        print(
            f"step {each.step:3d}  {time.perf_counter() - begin:5.1f} s  KL {each.kl:6.3f} nats  "
            f"agreement {each.agreement:5.1%}  {each.text!r}",
            flush=True,
        )


if __name__ == "__main__":
    main()
