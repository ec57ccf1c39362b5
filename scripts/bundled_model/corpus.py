"""Draws the training items and turns them into token ids with a weight for each."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
from tokenizers import Tokenizer

from scripts.bundled_model.rendering import prompt_text, reply_text
from scripts.bundled_model.training_items import TRAINING_GENERATORS
from scripts.evaluation.items.item import Item, draw_from_split

SHARES: Mapping[str, float] = {
    "sum": 0.30,
    "small_sum": 0.03,
    "plain_sum": 0.05,
    "chat": 0.16,
    "conversation": 0.08,
    "json": 0.08,
    "tool_call": 0.10,
    "two_tool_calls": 0.02,
    "tool_reply": 0.04,
    "story": 0.11,
    "story_request": 0.03,
}
"""Share of each generator among the training items."""

THINKING_SHARE = 0.4
PROMPT_WEIGHT = 0.1
"""Loss weight of prompt tokens against 1 for the reply: questions are random, so there is little
to learn from them, but the model should not be lost when it must write one."""


@dataclass(frozen=True)
class Example:
    """One item as the model sees it.

    Attributes:
      token_ids: prompt and reply, int32 [n].
      weights: loss weight of predicting each of these tokens, float32 [n].
    """

    token_ids: np.ndarray
    weights: np.ndarray


def draw_training_items(count: int, seed: int) -> Iterator[tuple[Item, bool]]:
    """Yields items of the training side and whether the reply thinks, in the shares above."""
    rng = Random(f"training {seed}")
    names, shares = list(SHARES), list(SHARES.values())
    for name in rng.choices(names, shares, k=count):
        item = draw_from_split(TRAINING_GENERATORS[name], rng, held_out=False)
        yield item, rng.random() < THINKING_SHARE


def render(items: Sequence[tuple[Item, bool]]) -> list[tuple[str, str]]:
    """Prompt and reply text of each item."""
    return [(prompt_text(item, thinks), reply_text(item, thinks)) for item, thinks in items]


def encode(tokenizer: Tokenizer, texts: Sequence[tuple[str, str]]) -> list[Example]:
    """Token ids of each prompt and reply, tokenized apart as they are when the engine serves."""
    prompts = tokenizer.encode_batch_fast([prompt for prompt, _ in texts])
    replies = tokenizer.encode_batch_fast([reply for _, reply in texts])
    return [_example(prompt.ids, reply.ids) for prompt, reply in zip(prompts, replies, strict=True)]


def _example(prompt: list[int], reply: list[int]) -> Example:
    weights = np.ones(len(prompt) + len(reply), np.float32)
    weights[: len(prompt)] = PROMPT_WEIGHT
    return Example(np.asarray(prompt + reply, np.int32), weights)
