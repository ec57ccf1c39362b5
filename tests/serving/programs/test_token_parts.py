"""A prefill's tokens in two halves: where they are cut, and what attention is told of each."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.serving.programs.step_inputs import StepInputs
from jaxinfer.serving.programs.token_parts import cut, part_sizes
from tests.serving.runner.tiny_runner import Loop, expected_greedy, make_runner, prompts


@pytest.mark.parametrize("num_tokens", [4096, 4097, 8191, 10_000, 16_384])
def test_long_prefills_are_halved_at_a_whole_tile(num_tokens):
    first, second = part_sizes(num_tokens, 2)
    assert first + second == num_tokens
    assert first % 128 == 0
    assert 0 <= first - second < 256


@pytest.mark.parametrize(("num_tokens", "num_devices"), [(4095, 2), (64, 8), (16_384, 1)])
def test_short_prefills_and_one_device_keep_their_tokens_together(num_tokens, num_devices):
    assert part_sizes(num_tokens, num_devices) == (num_tokens,)


def test_each_token_keeps_its_row_and_position():
    lengths, cached = np.array([3, 1, 0, 9, 1, 5, 0]), np.array([4, 7, 0, 2, 0, 0, 0])
    num_tokens = 24  # the last five are padding
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    rows = np.repeat(np.arange(len(lengths)), lengths)
    positions = np.arange(len(rows)) - offsets[rows] + cached[rows]
    wanted = list(zip(rows.tolist(), positions.tolist(), strict=True))
    index = jnp.arange(num_tokens, dtype=jnp.int32)
    whole = StepInputs(
        token_ids=index,
        positions=index,
        slot_mapping=index,
        cu_seqlens=jnp.asarray(offsets, jnp.int32),
        context_lens=jnp.asarray(np.where(lengths > 0, lengths + cached, 0), jnp.int32),
        block_tables=jnp.zeros((len(lengths), 1), jnp.int32),
        of_tokens={"ordinal": index},
        of_rows={"ordinal": jnp.arange(len(lengths))},
    )
    for first in range(1, num_tokens):
        parts = cut(whole, (first, num_tokens - first))
        assert np.concatenate([part.token_ids for part in parts]).tolist() == [*range(num_tokens)]
        ordinals = np.concatenate([part.of_tokens["ordinal"] for part in parts])
        assert ordinals.tolist() == [*range(num_tokens)]
        assert all(len(part.of_rows["ordinal"]) == len(lengths) for part in parts)
        assert [place for part in parts for place in _places(part)] == wanted


def _places(part):
    """The row and position of each token, as attention derives them."""
    offsets, context_lens = np.asarray(part.cu_seqlens), np.asarray(part.context_lens)
    assert offsets[0] == 0
    assert offsets[-1] <= len(part.token_ids)
    for row, (begin, end) in enumerate(itertools.pairwise(offsets)):
        assert (context_lens[row] > 0) == (end > begin)
        for i in range(end - begin):
            yield row, int(context_lens[row] - (end - begin) + i)


@pytest.fixture
def halving(monkeypatch, tmp_path):
    """Makes a runner on two devices whose prefills of 16 tokens and more go in unequal halves."""

    def sizes(num_tokens, _):
        return (num_tokens,) if num_tokens < 16 else (num_tokens // 2 + 3, num_tokens // 2 - 3)

    monkeypatch.setattr("jaxinfer.serving.programs.kinds.prefill.part_sizes", sizes)
    # A cache of its own: what others compiled has the same name and one part.
    return make_runner(devices=2, compilation_cache_dir=str(tmp_path))


@pytest.mark.parametrize("budget", [64, 20], ids=["whole_prompts", "chunks"])
def test_halves_change_no_token(halving, budget):
    lengths = [3, 17, 30, 1, 8, 40]
    loop = Loop(halving, late=False, max_num_batched_tokens=budget)
    asked = prompts(np.random.default_rng(0), lengths)
    for prompt in asked:
        loop.add(prompt)
    assert loop.run() == [expected_greedy(prompt, 6) for prompt in asked]
    halving.close()
