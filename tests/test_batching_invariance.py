"""Greedy tokens never depend on how the engine batches: whatever the combination of its settings,
they equal a plain loop over `forward` exactly."""

import contextlib
import dataclasses
import itertools
import random
from collections.abc import Iterator

import jax
import numpy as np
import pytest

from jaxinfer import LLM, ModelConfig, SamplingParams, forward
from jaxinfer.model.experts import Experts
from jaxinfer.model.rope_scaling import RopeScaling
from jaxinfer.model.sharding import make_mesh
from tests.model import tiny

# Bits that differ between shapes are what is looked for, and LLVM's vectors may bring them.
pytestmark = pytest.mark.optimized

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
    return tiny.params(CONFIG)


@pytest.fixture(scope="module")
def expected(params) -> list[list[int]]:
    return _plain_loop(params, CONFIG)


def _plain_loop(params, config) -> list[list[int]]:
    """The whole sequence through `forward` for every token."""
    step = jax.jit(lambda tokens: forward(params, config, tokens))
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
# All that the scheduler does with each other, and with every other setting in pairs.
COVERING = [
    (8, 32, True, True, 8),
    (16, 32, True, False, 1),
    (64, 32, False, True, 1),
    (8, 32, False, False, 8),
    (16, None, True, True, 8),
    (64, None, True, False, 8),
    (8, None, False, True, 1),
    (16, None, False, False, 8),
]
MATRIX = [
    pytest.param(*case, marks=() if case in COVERING else pytest.mark.exhaustive)
    for case in itertools.product(*SETTINGS)
]


# Families whose layers compute something else, and what of it is to be seen in these texts.
FAMILIES = {
    "qwen2": {},
    "smollm3": {"unrotated_layers": (1,)},
    "ministral3": {"rope_scaling": RopeScaling(2.0, 16, query_beta=0.5)},
    "phi3": {"partial_rotary_factor": 0.75},
    "olmo2": {},
    "qwen3_moe": {"experts": Experts(8, 3, 32, True, dense_layers=(0,))},
}
# Every second family, each under other settings: all are served beside others in
# tests/model/test_families_against_transformers.py, too.
OF_FAMILIES = [
    pytest.param(
        *(family, *case),
        marks=() if i % 2 == 0 and case == COVERING[i] else pytest.mark.exhaustive,
    )
    for i, family in enumerate(FAMILIES)
    for case in COVERING
]


@contextlib.contextmanager
def _engine(params, devices=1, config=CONFIG, **settings) -> Iterator[LLM]:
    with LLM(
        params=params,
        config=config,
        mesh=make_mesh(devices),
        dtype="float32",
        max_model_len=MAX_MODEL_LEN,
        max_num_seqs=8,
        compile_ahead=False,
        show_progress=False,
        **settings,
    ) as llm:
        yield llm


def _generate(llm) -> list[list[int]]:
    greedy = SamplingParams(temperature=0.0, max_tokens=NUM_OUTPUTS, ignore_eos=True)
    outputs = llm.generate(ragged_prompts(), greedy, use_tqdm=False)
    return [output.outputs[0].token_ids for output in outputs]


def test_without_the_full_matrix_all_pairs_of_settings_are_tried():
    tried = [dict(enumerate(case)) for case in COVERING]
    for settings in [*itertools.combinations(range(5), 2), (1, 2, 3)]:
        wanted = itertools.product(*(SETTINGS[i] for i in settings))
        assert {tuple(case[i] for i in settings) for case in tried} == set(wanted)


@pytest.mark.slow
@pytest.mark.parametrize(("block_size", "budget", "prefix_caching", "tight", "devices"), MATRIX)
def test_greedy_tokens_equal_a_plain_loop_over_forward(
    params, expected, block_size, budget, prefix_caching, tight, devices
):
    _check(params, CONFIG, expected, block_size, budget, prefix_caching, tight, devices)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "block_size", "budget", "prefix_caching", "tight", "devices"), OF_FAMILIES
)
def test_greedy_tokens_of_other_families_equal_a_plain_loop(
    family, block_size, budget, prefix_caching, tight, devices
):
    config = dataclasses.replace(CONFIG, model_type=family, **FAMILIES[family])
    params = tiny.params(config)
    expected = _plain_loop(params, config)
    _check(params, config, expected, block_size, budget, prefix_caching, tight, devices)


def _check(params, config, expected, block_size, budget, prefix_caching, tight, devices) -> None:
    with _engine(
        params,
        devices,
        config,
        block_size=block_size,
        num_kv_blocks=1 + 14 * MAX_MODEL_LEN // block_size,
        max_num_batched_tokens=budget,
        enable_prefix_caching=prefix_caching,
    ) as llm:
        scheduler = llm._loaded.replicas[0].scheduler
        # Held blocks, not a smaller cache, which would need programs of its own. What is left has
        # room for one full-length sequence, or for all of them.
        num_left = MAX_MODEL_LEN // block_size
        num_held = scheduler.pool.num_usable_blocks - num_left if tight else 0
        held = scheduler.pool.allocate(num_held)
        assert _generate(llm) == expected
        scheduler.pool.free(held)
        # In blocks of 64 tokens no prompt here outgrows what it was admitted with.
        assert (scheduler.num_preemptions > 0) == (tight and block_size < 64)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["numba", "xla"])
def test_greedy_tokens_do_not_depend_on_the_attention_backend(params, expected, backend):
    # One of the cases above, whose programs are those of the backend that is chosen there.
    with _engine(
        params, attention_backend=backend, num_kv_blocks=113, max_num_batched_tokens=32
    ) as llm:
        assert _generate(llm) == expected
