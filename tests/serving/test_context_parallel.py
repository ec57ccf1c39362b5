"""Engines whose sequences are dealt to several devices answer as one on a single device does."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer import LLM, Capture, SamplingParams
from jaxinfer.model.experts import Experts
from jaxinfer.model.modules import abstract_params
from jaxinfer.model.sharding import ShardingRules, make_mesh, with_contexts
from jaxinfer.testing import tiny_params
from tests.serving.small_llm import (
    CONFIG,
    GREEDY,
    MAX_MODEL_LEN,
    greedy_reference,
    held_blocks,
    small_llm,
    small_params,
)

COUNT = 12
SAMPLED = SamplingParams(
    temperature=0.9, top_p=0.95, seed=5, max_tokens=COUNT, ignore_eos=True, n=2
)
PARAMS = [GREEDY.clone(max_tokens=COUNT), SAMPLED, GREEDY.clone(max_tokens=COUNT, logprobs=2)]
LENGTHS = (1, 2, 5, 16, 17, 33, 40, 52)
PROMPTS = [
    np.random.default_rng(length).integers(1, CONFIG.vocab_size, length).tolist()
    for length in LENGTHS
]
REQUESTS = [(prompt, PARAMS[i % 3]) for i, prompt in enumerate(PROMPTS)]
REQUESTS += [([*PROMPTS[-1][:48], 7], PARAMS[0])]  # begins with the blocks of another
DEGREES = [
    {"context_parallel_size": 2},
    pytest.param({"context_parallel_size": 4}, marks=pytest.mark.slow),
    pytest.param({"context_parallel_size": 8}, marks=pytest.mark.slow("each")),
    {"context_parallel_size": 2, "tensor_parallel_size": 2},
]


def generate(llm, requests=REQUESTS):
    return llm.generate([prompt for prompt, _ in requests], [params for _, params in requests])


def tokens(llm, requests=REQUESTS):
    outputs = generate(llm, requests)
    return [[each.token_ids for each in output.outputs] for output in outputs]


def placed_params():
    """The parameters as two contexts have them."""
    mesh, _ = with_contexts(make_mesh(2), ShardingRules(), 2)
    described = abstract_params(CONFIG, jnp.float32, mesh)
    return jax.device_put(small_params(), jax.tree.map(lambda leaf: leaf.sharding, described))


def logprobs(output):
    """Of the tokens of a prompt."""
    return [each[min(each)].logprob for each in output.prompt_logprobs if each is not None]


def contexts(llm):
    return llm._loaded.replicas[0].runner.programs.context.sequences.size


@pytest.fixture(scope="module")
def expected():
    with small_llm() as llm:
        return tokens(llm)


@pytest.fixture(scope="module", params=DEGREES, ids=str)
def split(request):
    # Chunks of a prompt end anywhere, and blocks hold fewer tokens, so that a prompt has several.
    with small_llm(block_size=8, max_num_batched_tokens=23, **request.param) as llm:
        yield llm


def test_tokens_are_those_of_one_device(split, expected):
    assert tokens(split) == expected


@pytest.mark.slow
def test_a_prefix_hit_gives_the_same_tokens(split, expected):
    assert tokens(split) == expected
    outputs = generate(split)
    assert [[each.token_ids for each in output.outputs] for output in outputs] == expected
    block = 8 * contexts(split)
    assert all(
        output.num_cached_tokens >= (len(output.prompt_token_ids) - 1) // block * block
        for output in outputs
    )


def test_preempted_requests_give_the_same_tokens(split):
    scheduler, block = split._loaded.replicas[0].scheduler, 8 * contexts(split)
    if block >= MAX_MODEL_LEN:
        pytest.skip("a sequence has one block")
    prompts = [[*range(first, first + block - 2)] for first in (1, 101, 201)]
    before = scheduler.num_preemptions
    with held_blocks(split, 4):  # three begin with one each, and want a second
        found = tokens(split, [(prompt, PARAMS[0]) for prompt in prompts])
    assert found == [[greedy_reference(prompt, COUNT)] for prompt in prompts]
    assert scheduler.num_preemptions > before


def test_log_probabilities_of_prompts_are_those_of_one_device(split):
    params = GREEDY.clone(max_tokens=2, prompt_logprobs=1)
    with small_llm() as llm:
        (whole,) = llm.generate([PROMPTS[-2]], params)
    (dealt,) = split.generate([PROMPTS[-2]], params)
    assert dealt.outputs[0].token_ids == whole.outputs[0].token_ids
    assert logprobs(dealt) == pytest.approx(logprobs(whole), abs=1e-4)


def test_each_device_holds_its_share_of_a_block(split):
    size = contexts(split)
    pages = split._loaded.replicas[0].runner.programs.kv[0].k
    assert pages.shape[1] == 8 * size
    assert pages.sharding.shard_shape(pages.shape)[1] == 8
    assert split.report.num_kv_tokens == (split.report.num_kv_blocks - 1) * 8 * size


@pytest.mark.parametrize("cache", [pytest.param("int8", marks=pytest.mark.exhaustive), "fp8_e4m3"])
def test_quantized_pages_are_dealt_too(cache):
    with small_llm(kv_cache_dtype=cache, attention_backend="xla") as llm:
        whole = tokens(llm, REQUESTS[:6])
    with small_llm(kv_cache_dtype=cache, context_parallel_size=2) as llm:
        assert tokens(llm, REQUESTS[:6]) == whole


def test_weights_can_be_replaced(expected):
    with small_llm(params=tiny_params(seed=2), context_parallel_size=2) as llm:
        assert tokens(llm, REQUESTS[:3]) != expected[:3]
        llm.update_params(placed_params())
        assert tokens(llm, REQUESTS[:3]) == expected[:3]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"context_parallel_size": 3}, "context_parallel_size must be a power of two, got 3"),
        ({"context_parallel_size": 0}, "context_parallel_size must be"),
        (
            {"context_parallel_size": 16},
            "context_parallel_size 16 x tensor_parallel_size 1 needs 16",
        ),
        (
            {"context_parallel_size": 4, "tensor_parallel_size": 4},
            "context_parallel_size 4 x tensor_parallel_size 4 needs 16 devices, and there are 8",
        ),
        ({"context_parallel_size": 2, "tensor_parallel_size": 3}, "3 does not divide"),
        ({"context_parallel_size": 2, "enable_lora": True}, "and enable_lora exclude"),
        ({"context_parallel_size": 2, "eager": True}, "and eager exclude"),
        ({"context_parallel_size": 2, "data_parallel_size": 2}, "and data_parallel_size exclude"),
        ({"context_parallel_size": 2, "kv_offloading_size": 1.0}, "and kv_offloading_size exclude"),
        (
            {"context_parallel_size": 2, "preemption_mode": "swap", "swap_space": 0.1},
            "and preemption_mode='swap' exclude",
        ),
        (
            {"context_parallel_size": 2, "speculative_config": {"method": "ngram"}},
            "and speculative_config exclude",
        ),
        ({"context_parallel_size": 2, "attention_backend": "numba"}, "'numba' can't attend over"),
        ({"context_parallel_size": 2, "mesh": make_mesh(2)}, "needs a mesh of the axes 'context'"),
        ({"context_parallel_size": 2, "rules": ShardingRules(vocab=None)}, "not go with rules"),
        ({"context_parallel_size": 2, "capture": Capture([0])}, "not go with capture"),
        (
            {"context_parallel_size": 2, "block_size": 256, "num_kv_blocks": 1 << 22},
            r"times block_size x context_parallel_size \(512\) must be below",
        ),
    ],
    ids=str,
)
def test_what_does_not_go_with_it_is_refused_in_one_line(options, named):
    with pytest.raises(ValueError, match=named) as raised:
        small_llm(**options)
    assert "\n" not in str(raised.value)


def test_models_with_experts_are_refused():
    experts = Experts(16, 3, 16, dense_layers=(1,))
    config = dataclasses.replace(CONFIG, model_type="qwen3_moe", experts=experts)
    with pytest.raises(ValueError, match="does not go with a model with experts"):
        LLM(params=tiny_params(config=config), config=config, context_parallel_size=2)


def test_parameters_may_lie_on_a_mesh_with_both_axes(expected):
    flat = jax.sharding.NamedSharding(make_mesh(2), jax.sharding.PartitionSpec())
    with pytest.raises(ValueError, match="needs a mesh of the axes 'context'"):
        small_llm(params=jax.device_put(small_params(), flat), context_parallel_size=2)
    with small_llm(params=placed_params(), context_parallel_size=2) as llm:
        assert tokens(llm, REQUESTS[:3]) == expected[:3]
