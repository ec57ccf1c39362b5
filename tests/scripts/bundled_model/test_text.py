"""The training text: whole examples, weighted replies, rows without overlap, and the tokenizer."""

from itertools import islice

import numpy as np
import pytest
from tokenizers import Tokenizer

from scripts.bundled_model.__main__ import TOKENIZER_TEXTS
from scripts.bundled_model.config import SCHEDULES
from scripts.bundled_model.corpus import (
    PROMPT_WEIGHT,
    SHARES,
    Example,
    draw_training_items,
    encode,
    render,
)
from scripts.bundled_model.packing import batches, pack_epoch
from scripts.bundled_model.rendering import TEMPLATE, prompt_text
from scripts.bundled_model.tokenizer import train_tokenizer
from scripts.bundled_model.training_items import TRAINING_GENERATORS
from scripts.evaluation.items.split import is_held_out

PAD = 2039


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(TEMPLATE.parent / "tokenizer.json"))


def numbered(size: int, first: int) -> Example:
    return Example(np.arange(first, first + size, dtype=np.int32), np.ones(size, np.float32))


def test_every_generator_has_a_share_and_the_shares_are_whole():
    assert set(SHARES) == set(TRAINING_GENERATORS)
    assert sum(SHARES.values()) == pytest.approx(1.0)


def test_training_items_depend_on_the_seed_alone_and_are_never_held_out():
    first, again = list(draw_training_items(200, 0)), list(draw_training_items(200, 0))
    assert first == again != list(draw_training_items(200, 1))
    assert not any(is_held_out(item.key) for item, _ in first)


def test_a_reply_weighs_one_a_prompt_less_and_the_end_is_learned(tokenizer: Tokenizer):
    items = [pair for pair in draw_training_items(60, 0) if pair[0].messages]
    for (item, thinks), example in zip(items, encode(tokenizer, render(items)), strict=True):
        prompt = len(tokenizer.encode(prompt_text(item, thinks)).ids)
        assert np.all(example.weights[:prompt] == np.float32(PROMPT_WEIGHT))
        assert np.all(example.weights[prompt:] == 1)
        assert tokenizer.id_to_token(int(example.token_ids[-1])) == "<|im_end|>"
        reply = tokenizer.decode(example.token_ids[prompt:].tolist())
        assert reply.startswith("<think>") == thinks
        assert item.answer in reply


def test_packing_keeps_every_example_once_and_whole():
    sizes = np.random.default_rng(0).integers(1, 40, 300)
    examples = [numbered(int(size), 1000 * i) for i, size in enumerate(sizes)]
    token_ids, weights = pack_epoch(examples, 64, -1, np.random.default_rng(1))
    assert np.array_equal(token_ids == -1, weights == 0)
    for i, size in enumerate(sizes):
        rows, columns = np.nonzero(token_ids // 1000 == i)
        rows, columns = rows[: int(size)], columns[: int(size)]
        assert len(set(rows)) == 1
        assert np.array_equal(token_ids[rows, columns], examples[i].token_ids)
        assert np.all(np.diff(columns) == 1)
    assert (weights > 0).mean() > 0.9


def test_examples_longer_than_a_row_are_left_out():
    token_ids, _ = pack_epoch([numbered(9, 0), numbered(8, 50)], 8, -1, np.random.default_rng(0))
    assert token_ids.tolist() == [list(range(50, 58))]


def test_batches_repeat_by_seed_and_refuse_too_little_text():
    examples = [numbered(5, 10 * i) for i in range(40)]

    def some(seed: int) -> list[np.ndarray]:
        return [ids for ids, _ in islice(batches(examples, 16, 3, -1, seed), 8)]

    assert np.array_equal(some(0), some(0))
    assert not np.array_equal(some(0), some(1))
    with pytest.raises(ValueError, match="fills 1 rows, a batch needs 3"):
        next(batches(examples[:2], 16, 3, -1, 0))


def test_too_little_text_for_the_vocabulary_is_an_error():
    with pytest.raises(ValueError, match="2048 are wanted: use more"):
        train_tokenizer(["Once upon a time"])


@pytest.mark.slow
def test_the_script_makes_exactly_the_bundled_tokenizer(tokenizer: Tokenizer):
    items = draw_training_items(SCHEDULES["gpu"].num_items, seed=0)
    texts = render(list(islice(items, TOKENIZER_TEXTS)))
    made = train_tokenizer(prompt + reply for prompt, reply in texts)
    assert made.to_str() == tokenizer.to_str()
