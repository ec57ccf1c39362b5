"""`python -m scripts.draft_head`: trains one of the bundled model's draft heads on its text.

A quarter to half an hour on two CPU cores.
"""

import argparse
import functools
import itertools
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
from tokenizers import Tokenizer

from jaxinfer.model.checkpoint.hub import BUNDLED_DRAFT_HEADS, BUNDLED_MODEL
from jaxinfer.model.checkpoint.weights import load_params
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.draft_head.weights import save_draft_head
from jaxinfer.profiling.figures import share_text
from scripts.bundled_model.corpus import Example, draw_training_items, encode, render
from scripts.bundled_model.packing import batches
from scripts.bundled_model.training import cast
from scripts.draft_head import dflash, eagle3
from scripts.draft_head.training import train_head

MAX_BYTES = 2_000_000
"""What the head's files may weigh together."""


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m scripts.draft_head", description=__doc__)
    parser.add_argument("--model", type=Path, default=BUNDLED_MODEL, help="model directory")
    parser.add_argument("--method", choices=BUNDLED_DRAFT_HEADS, default="eagle3")
    parser.add_argument("--out", type=Path, help="head's directory; by default the bundled one")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--items", type=int, default=30_000, help="training items drawn")
    parser.add_argument("--steps", type=int, help="by default 750, or 1300 of dflash")
    parser.add_argument("--rows", type=int, default=24)
    parser.add_argument("--length", type=int, default=128, help="tokens of two rows in three")
    parser.add_argument("--depth", type=int, default=3, help="drafts in a row, of eagle3")
    return parser.parse_args()


def likeliest_tokens(examples: list[Example], vocab_size: int, count: int) -> np.ndarray:
    """The ids of the tokens that replies have most often, ascending, int32 ``[count]``."""
    counts = np.zeros(vocab_size)
    for example in examples:
        np.add.at(counts, example.token_ids, example.weights)
    share = share_text(float(np.sort(counts)[-count:].sum() / counts.sum()), 2)
    print(f"{count} tokens are {share} of the text")
    return np.sort(np.argsort(-counts, kind="stable")[:count]).astype(np.int32)


def mixed_batches(
    examples: list[Example], args: argparse.Namespace, pad_id: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Two batches of short rows, one of rows that hold the longest prompts, and so on."""
    short = batches(examples, args.length, args.rows, pad_id, args.seed)
    long = batches(examples, 3 * args.length, max(args.rows // 3, 1), pad_id, args.seed + 1)
    return itertools.chain.from_iterable(zip(short, short, long, strict=True))


def main() -> None:
    """Trains and saves the head."""
    args = parse_arguments()
    config = ModelConfig.from_directory(args.model)
    params = load_params(args.model, config, "float32")
    tokenizer = Tokenizer.from_file(str(args.model / "tokenizer.json"))
    examples = encode(tokenizer, render(list(draw_training_items(args.items, args.seed))))
    losses = {
        "eagle3": functools.partial(eagle3.loss_of, depth=args.depth),
        "dflash": dflash.loss_of,
    }
    head = {"eagle3": eagle3, "dflash": dflash}[args.method].head_config(config)
    out = args.out or BUNDLED_DRAFT_HEADS[args.method]
    token_ids = likeliest_tokens(examples, config.vocab_size, head.draft_vocab_size)
    trained = train_head(
        head,
        losses[args.method],
        params,
        config,
        mixed_batches(examples, args, config.eos_token_ids[-1]),
        token_ids=token_ids,
        steps=args.steps or {"eagle3": 750, "dflash": 1300}[args.method],
        learning_rate=3e-3,
        seed=args.seed,
    )
    ids = trained.pop("token_ids")
    stored = cast(trained, config.dtype) | {"token_ids": ids}
    save_draft_head(jax.device_get(stored), head, out)
    size = sum(file.stat().st_size for file in out.iterdir())
    if size > MAX_BYTES:
        raise ValueError(f"{out} holds {size:,} bytes, {MAX_BYTES:,} are allowed")
    print(f"written to {out}: {size:,} bytes")


if __name__ == "__main__":
    main()
