"""`python -m scripts.bundled_model`: text, tokenizer, weights, evaluation, in one go.

`--experts` trains a model of the same size with experts, on the same text by the same tokenizer.
Three minutes on one H200, about fifty on two CPU cores; with experts three minutes on one H200 at
`--share 0.7`, which is how the bundled one was made. A seed gives the same text and tokenizer
everywhere, and the same weights on the same kind of device with the same JAX.
"""

import argparse
import dataclasses
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import jax
from tokenizers import Tokenizer

from jaxinfer.model.config import ModelConfig
from scripts.bundled_model import balance
from scripts.bundled_model.assets import write_model
from scripts.bundled_model.config import SCHEDULES, Schedule, model_config, with_experts
from scripts.bundled_model.corpus import draw_training_items, encode, render
from scripts.bundled_model.greedy import answer
from scripts.bundled_model.packing import batches
from scripts.bundled_model.rendering import TEMPLATE
from scripts.bundled_model.tokenizer import END_OF_TEXT, TURN_END, known_id, train_tokenizer
from scripts.bundled_model.training import cast, train
from scripts.evaluation.rates import below_bar, questions, rates

EXPERTS_MODEL = TEMPLATE.parent.with_name("experts_model")
MAX_REPLY_TOKENS = 96
TOKENIZER_TEXTS = 30_000
"""Texts the tokenizer learns from: the vocabulary is full long before."""


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m scripts.bundled_model", description=__doc__)
    parser.add_argument("--experts", action="store_true", help="train the model with experts")
    parser.add_argument("--out", type=Path, help="model directory; by default the bundled one")
    parser.add_argument("--schedule", choices=sorted(SCHEDULES), help="default: by the device")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, help="shorten the first phase to this many steps")
    parser.add_argument("--share", type=float, help="of the steps of every phase, for less time")
    parser.add_argument("--items", type=int, help="training items drawn")
    parser.add_argument("--max-seconds", type=float, default=7200.0, help="of training")
    parser.add_argument("--questions", type=int, help="held-out items a kind; 0 asks nothing")
    return parser.parse_args()


def use_deterministic_kernels() -> None:
    """Has XLA add in a fixed order on a GPU too, so that a seed gives the same weights each time.

    Must be called before JAX starts its backend, which reads the flag.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    os.environ["XLA_FLAGS"] = f"{flags} --xla_gpu_deterministic_ops=true".strip()


def choose_schedule(args: argparse.Namespace) -> Schedule:
    """The named schedule, or the device's own, shortened as asked."""
    name = args.schedule or ("cpu" if jax.default_backend() == "cpu" else "gpu")
    schedule = SCHEDULES[name]
    if args.items is not None:
        schedule = dataclasses.replace(schedule, num_items=args.items)
    if args.share is not None:
        phases = tuple(phase.shortened(args.share) for phase in schedule.phases)
        schedule = dataclasses.replace(schedule, phases=phases)
    if args.questions is not None:
        schedule = dataclasses.replace(schedule, num_questions=args.questions)
    if args.steps is not None:
        first = dataclasses.replace(schedule.phases[0], steps=args.steps)
        warmup = min(schedule.warmup, args.steps // 10)
        schedule = dataclasses.replace(schedule, phases=(first,), warmup=warmup)
    return schedule


def evaluate(params: Any, config: ModelConfig, tokenizer: Tokenizer, count: int) -> dict[str, Any]:
    """Held-out rates of the weights as given, by the plain forward."""
    trials = answer(
        params,
        config,
        tokenizer,
        questions(count),
        max_tokens=MAX_REPLY_TOKENS,
        rows=min(count, 256),
    )
    found = rates(trials)
    for trial in trials[:: max(1, count // 2)]:
        print(f"  {trial.question.item.messages[-1]['content']!r} -> {trial.reply!r}")
    report = {name: round(rate.share, 4) for name, rate in found.items()}
    return {"rates": report, "below_bar": below_bar(found)}


def main() -> int:
    """Makes the model and prints how good it is; 1 if it misses a bar."""
    args = parse_arguments()
    use_deterministic_kernels()
    schedule = choose_schedule(args)
    started = time.monotonic()

    def say(what: str) -> None:
        print(f"[{time.monotonic() - started:6.1f} s] {what}", flush=True)

    texts = render(list(draw_training_items(schedule.num_items, args.seed)))
    say(f"{len(texts):,} texts")
    if args.experts:
        tokenizer = Tokenizer.from_file(str(TEMPLATE.with_name("tokenizer.json")))
    else:
        tokenizer = train_tokenizer(prompt + reply for prompt, reply in texts[:TOKENIZER_TEXTS])
    examples = encode(tokenizer, texts)
    say(f"{sum(len(example.token_ids) for example in examples):,} tokens")
    end_of_text, turn_end = (known_id(tokenizer, token) for token in (END_OF_TEXT, TURN_END))
    config = model_config(tokenizer.get_vocab_size(), (turn_end, end_of_text), end_of_text)
    config = with_experts(config) if args.experts else config
    params = train(
        config,
        schedule,
        examples,
        pad_id=end_of_text,
        seed=args.seed,
        max_seconds=args.max_seconds,
    )
    say("trained")
    stored = cast(params, config.dtype)
    out = args.out or (EXPERTS_MODEL if args.experts else TEMPLATE.parent)
    write_model(out, config, tokenizer, stored)
    say(f"written to {out}")
    if args.experts:
        phase = schedule.phases[0]
        token_ids, _ = next(
            batches(examples, phase.length, phase.rows, end_of_text, args.seed + 100)
        )
        for line in balance.report(cast(stored, schedule.compute_dtype), config, token_ids):
            say(line)
    if not schedule.num_questions:
        return 0
    ready = cast(stored, schedule.compute_dtype)
    report = evaluate(ready, config, tokenizer, schedule.num_questions)
    say(json.dumps(report))
    return 1 if report["below_bar"] else 0


if __name__ == "__main__":
    sys.exit(main())
