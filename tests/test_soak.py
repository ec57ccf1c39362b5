"""Hundreds of random requests, disturbed in every way there is: each gets what it would have got
alone, and nothing leaks. With `-m exhaustive`, two thousand."""

import contextlib
import dataclasses
import random
import string

import jax
import psutil
import pytest

from jaxinfer import LLM, ModelConfig, SamplingParams, load_params
from jaxinfer.model.checkpoint.hub import BUNDLED_MODEL
from jaxinfer.model.text.tokenizer import Tokenizer

pytestmark = pytest.mark.slow("each")

MAX_MODEL_LEN = 160
_MOST_BETWEEN = 4  # ids, of tokens that are hardly ever drawn
_FAR = 1 << 30
OPENINGS = (
    "Once upon a time, there was a",
    "What is 12 + 34?",
    "The capital of",
    '{"name": "',
    "🦊 said 你好 to the",
    "",
)


@pytest.fixture(scope="module")
def engines():
    """Two engines with too few blocks and small chunks: a crowded one, and one for a request alone.

    Of the same programs, so that these are compiled once. The model is the bundled one, less its
    last two layers: weights that were trained, in half the time.
    """
    config = ModelConfig.from_directory(BUNDLED_MODEL)
    params = load_params(BUNDLED_MODEL, config, "float32")
    config = dataclasses.replace(config, num_hidden_layers=2)
    params["model"]["layers"] = {i: params["model"]["layers"][i] for i in ("0", "1")}
    with contextlib.closing(Tokenizer.from_directory(BUNDLED_MODEL)) as tokenizer:
        model = {"params": params, "config": config, "tokenizer": tokenizer, "dtype": "float32"}
        lengths = {"max_model_len": MAX_MODEL_LEN, "max_num_seqs": 12, "max_num_batched_tokens": 48}
        blocks = {"block_size": 8, "num_kv_blocks": 24}
        options = {**model, **lengths, **blocks, "compile_ahead": True, "show_progress": False}
        with LLM(**options) as crowded, LLM(**options) as alone:
            yield crowded, alone


def random_prompt(rng: random.Random, index: int) -> str:
    """An opening that many requests share, then a canary that is each one's own."""
    canary = "".join(rng.choices(string.ascii_lowercase, k=4)) + str(index)
    return rng.choice(OPENINGS) * rng.choice((1, 1, 4)) + f" {canary}"


def random_params(rng: random.Random) -> SamplingParams:
    """Mostly plain sampling; now and then each of what needs the full sampler."""
    given = {
        "max_tokens": rng.randint(1, 24),
        "temperature": rng.choice((0.0, 0.0, 0.5, 1.0)),
        "seed": rng.randrange(2**40),
        "ignore_eos": rng.random() < 0.3,
    }
    if rng.random() < 0.3:
        given |= {"top_k": rng.choice((1, 5, 50)), "top_p": rng.choice((0.5, 0.9, 1.0))}
    if rng.random() < 0.1:
        given["min_p"] = 0.1
    if rng.random() < 0.1:
        given["stop"] = [rng.choice((".", "a", " the"))]
    if rng.random() < 0.06:
        extras = (
            {"repetition_penalty": 1.3},
            {"presence_penalty": 1.0, "frequency_penalty": 0.5},
            {"logit_bias": {rng.randrange(2000): 5.0}},
            {"allowed_token_ids": rng.sample(range(2000), 40)},
            {"min_tokens": 1},
            {"bad_words": ["the", " was a"]},
            {"logprobs": 3},
        )
        given |= rng.choice(extras)
    return SamplingParams(**given)


def run_crowded(llm: LLM, requests: list, rng: random.Random) -> dict[str, list[int]]:
    """Feed requests as room appears, and abort one now and then; the tokens of each."""
    waiting, tokens, aborted = list(enumerate(requests))[::-1], {}, set()
    while waiting or llm.has_unfinished_requests():
        while waiting and len(tokens) - len(aborted) < len(requests) and rng.random() < 0.5:
            index, (prompt, params) = waiting.pop()
            llm.add_request(str(index), prompt, params)
        if rng.random() < 0.01:
            victim = str(rng.randrange(len(requests)))
            if llm.abort_request(victim):
                aborted.add(victim)
        for output in llm.step():
            if output.finished and output.request_id not in aborted:
                tokens[output.request_id] = list(output.outputs[0].token_ids)
    return tokens


def resources(llm: LLM) -> dict[str, int]:
    """What must not grow while requests come and go."""
    return {
        "compilations": llm.num_compilations,
        "arrays": len(jax.live_arrays()),
        "file descriptors": psutil.Process().num_fds(),
    }


@pytest.mark.parametrize("num_requests", [250, pytest.param(2_000, marks=pytest.mark.exhaustive)])
def test_every_request_gets_what_it_would_get_alone_and_nothing_leaks(engines, num_requests):
    crowded, alone = engines
    rng = random.Random(20 + num_requests)
    requests = [(random_prompt(rng, i), random_params(rng)) for i in range(num_requests)]

    warm = num_requests // 4
    first = run_crowded(crowded, requests[:warm], rng)
    scheduler = crowded._loaded.replicas[0].scheduler
    before = resources(crowded)
    rest = run_crowded(crowded, requests[warm:], rng)

    after = resources(crowded)
    assert after["compilations"] == before["compilations"]
    assert after["file descriptors"] <= before["file descriptors"]
    assert after["arrays"] <= before["arrays"] + 2  # the last step's results are still referenced
    scheduler.check_invariants()
    assert scheduler.pool.num_free_blocks == scheduler.pool.num_usable_blocks
    assert scheduler.num_preemptions > 20
    disturbed = first | {str(int(key) + warm): value for key, value in rest.items()}
    assert len(disturbed) > 0.9 * num_requests
    different = []
    for key, token_ids in disturbed.items():
        prompt, params = requests[int(key)]
        (output,) = alone.generate(prompt, params, use_tqdm=False)
        if token_ids != list(output.outputs[0].token_ids):
            different.append((prompt, params, token_ids, output.outputs[0].token_ids))
    # Another batch shape moves a logit in its last bits, and with it the edges between tokens on
    # the unit interval, by about 1e-5: where a draw's point lies between the old and the new edge,
    # the token's neighbour is drawn. It does once in some thousand draws, by the CPU's kernels.
    # Greedy tokens have no such edges, and a wrong page leads to any token.
    assert all(params.temperature > 0 for _, params, *_ in different), different
    assert all(first_distance(*tokens) <= _MOST_BETWEEN for _, _, *tokens in different), different
    assert len(different) <= num_requests / 50, different


def first_distance(token_ids, others):
    """How far apart in the vocabulary the first tokens are that differ."""
    return next((abs(a - b) for a, b in zip(token_ids, others, strict=False) if a != b), _FAR)
