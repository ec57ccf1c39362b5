"""Greedy tokens never depend on how the engine batches: every combination of engine settings
gives exactly the tokens of a plain loop over `forward`."""

import itertools
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer import LLM, ModelConfig, SamplingParams, forward
from jaxinfer.model.modules import init_params
from jaxinfer.model.sharding import make_mesh
from tests.pairwise import pairwise

MAX_MODEL_LEN = 128
NUM_OUTPUTS = 12

CONFIG = ModelConfig(
    vocab_size=256,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=8,
    num_key_value_heads=2,
    head_dim=16,
    rms_norm_eps=1e-6,
    rope_theta=10_000.0,
    rope_scaling=None,
    max_position_embeddings=MAX_MODEL_LEN,
    tie_word_embeddings=False,
    attention_bias=False,
    dtype="float32",
)


def ragged_prompts() -> list[list[int]]:
    """Prompts of many lengths, several of which share a prefix longer than a block."""
    rng = random.Random(7)
    shared = [rng.randrange(256) for _ in range(70)]
    lengths = [1, 2, 7, 8, 9, 31, 33, 64, 100]
    prompts = [[rng.randrange(256) for _ in range(length)] for length in lengths]
    prompts += [shared[:n] + [rng.randrange(256) for _ in range(3)] for n in (16, 64, 64, 70)]
    return [*prompts, prompts[-1]]


@pytest.fixture(scope="module")
def params() -> dict:
    return init_params(CONFIG, jax.random.key(0), jnp.float32)


@pytest.fixture(scope="module")
def expected(params) -> list[list[int]]:
    """The plain loop: the whole sequence through `forward` for every token."""
    step = jax.jit(lambda tokens: forward(params, CONFIG, tokens))
    sequences = []
    for prompt in ragged_prompts():
        tokens = list(prompt)
        for _ in range(NUM_OUTPUTS):
            # Causal attention: the padding behind the last token cannot change its logits.
            padded = np.zeros(MAX_MODEL_LEN, np.int32)
            padded[: len(tokens)] = tokens
            tokens.append(int(np.argmax(step(padded)[len(tokens) - 1])))
        sequences.append(tokens[len(prompt) :])
    return sequences


SETTINGS = (
    (8, 16, 64),  # block size
    (32, None),  # token budget of a step
    (True, False),  # prefix cache
    (True, False),  # so few blocks that requests are preempted
    (1, 8),  # devices
)


def _generate(params, devices=1, *, tight=False, block_size=16, **settings) -> list[list[int]]:
    """Answers of an engine with room for all sequences, or for little more than one."""
    blocks = MAX_MODEL_LEN // block_size
    with LLM(
        params=params,
        config=CONFIG,
        mesh=make_mesh(devices),
        dtype="float32",
        max_model_len=MAX_MODEL_LEN,
        max_num_seqs=8,
        block_size=block_size,
        num_kv_blocks=1 + 14 * blocks,
        compile_ahead=False,
        show_progress=False,
        **settings,
    ) as llm:
        scheduler = llm._loaded.replicas[0].scheduler
        # Held instead of never made, so that engines with little room run the same programs.
        held = scheduler.pool.allocate(13 * blocks - 1) if tight else []
        greedy = SamplingParams(temperature=0.0, max_tokens=NUM_OUTPUTS, ignore_eos=True)
        outputs = llm.generate(ragged_prompts(), greedy, use_tqdm=False)
        scheduler.pool.free(held)
        if not tight or block_size < 64:
            assert bool(scheduler.num_preemptions) == tight
    return [output.outputs[0].token_ids for output in outputs]


def _check(params, expected, block_size, budget, prefix_caching, tight, devices):
    tokens = _generate(
        params,
        devices,
        tight=tight,
        block_size=block_size,
        max_num_batched_tokens=budget,
        enable_prefix_caching=prefix_caching,
    )
    assert tokens == expected


@pytest.mark.parametrize("settings", pairwise(*SETTINGS), ids=str)
def test_greedy_tokens_equal_a_plain_loop_over_forward(params, expected, settings):
    _check(params, expected, *settings)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("settings", list(itertools.product(*SETTINGS)), ids=str)
def test_greedy_tokens_equal_a_plain_loop_whatever_the_settings(params, expected, settings):
    _check(params, expected, *settings)


@pytest.mark.parametrize("backend", ["numba", "xla"])
def test_greedy_tokens_do_not_depend_on_the_attention_backend(params, expected, backend):
    assert _generate(params, attention_backend=backend) == expected
