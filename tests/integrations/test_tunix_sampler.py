"""Tunix's rollout worker samples from jaxinfer; `scripts/tunix/env.sh` runs this file.

Google-tunix 0.1.7 lacks what is tested here: TUNIX_SOURCE names a checkout of a later commit.
"""

import asyncio
import functools
import importlib.util
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer import LLM, SamplingParams
from jaxinfer.model.checkpoint.hub import BUNDLED_MODEL
from tests.integrations import tunix_run


def _has_sampler():
    """Whether a tunix is there that has one; importing it here would warn."""
    found = importlib.util.find_spec("tunix")
    folders = [] if found is None else found.submodule_search_locations or []
    return any(Path(folder, "experimental").is_dir() for folder in folders)


pytestmark = [
    pytest.mark.tunix,
    pytest.mark.optimized,
    pytest.mark.skipif(not _has_sampler(), reason="needs tunix with tunix.experimental"),
    # Deprecations of tunix and of what it imports.
    pytest.mark.filterwarnings("ignore"),
]
SMALL = {"num_kv_blocks": 200, "max_num_seqs": 16, "max_model_len": 128}
GREEDY = SamplingParams(temperature=0.0, max_tokens=12)
PROMPTS = list(tunix_run.PROMPTS)


@pytest.fixture(scope="module", autouse=True)
def _loose_promotion():
    """Tunix's own code mixes dtypes."""
    jax.config.update("jax_numpy_dtype_promotion", "standard")
    yield
    jax.config.update("jax_numpy_dtype_promotion", "strict")


@pytest.fixture(scope="module")
def sampler():
    with tunix_run.third_party_warnings():
        from jaxinfer.integrations.tunix_sampler import JaxinferSampler

        sampler = JaxinferSampler(**SMALL)
        sampler.initialize()
    yield sampler
    asyncio.run(sampler.stop())


@pytest.fixture
def worker(sampler):
    return make_worker(sampler)


@pytest.fixture(scope="module")
def expected():
    with LLM(**SMALL, show_progress=False, logprobs_mode="temperature_logprobs") as llm:
        params = GREEDY.clone(logprobs=0)
        return llm.generate(PROMPTS, params, use_tqdm=False)


def make_worker(sampler):
    from transformers import AutoTokenizer
    from tunix.experimental.worker.rollout_worker import RolloutConfig, RolloutWorker
    from tunix.generate.tokenizer_adapter import TokenizerAdapter
    from tunix.rl.agentic.agents.model_agent import ModelAgent
    from tunix.rl.agentic.environments.task_environment import TaskEnvironment
    from tunix.rl.agentic.parser.chat_template_parser.parser import DefaultChatTemplateParser

    tokenizer = AutoTokenizer.from_pretrained(BUNDLED_MODEL)

    def acquire_env(config):
        return TaskEnvironment(config, reward_fn=lambda task, action: len(action))

    return RolloutWorker(
        worker_id="rollout-0",
        config=RolloutConfig(max_tokens_to_generate=12, temperature=0.0, return_logprobs=True),
        sampler=sampler,
        env_pool=SimpleNamespace(acquire_env=acquire_env, release_env=lambda env: None),
        agent_factory=functools.partial(ModelAgent, system_prompt=""),
        tokenizer=TokenizerAdapter(tokenizer),
        chat_parser=DefaultChatTemplateParser(tokenizer),
    )


def request(prompt, request_id="", **params):
    from tunix.experimental.rollout import sampler as protocol

    return protocol.SamplingRequest(
        prompt=prompt,
        request_id=request_id,
        sampling_params=protocol.SamplingParams(
            **({"max_tokens": 12, "temperature": 0.0} | params)
        ),
    )


def sample(sampler, requests, **kwargs):
    return asyncio.run(sampler.sample(requests, **kwargs))


def test_it_is_tunixs_sampler(sampler):
    from tunix.experimental.rollout import Sampler

    assert isinstance(sampler, Sampler)


def test_a_workers_prompts_are_completed_as_by_an_engine(worker, expected):
    output = asyncio.run(worker.sample_prompts(PROMPTS))
    for text, tokens, logprobs, want in zip(
        output.text, output.tokens, output.logprobs, expected, strict=True
    ):
        (completion,) = want.outputs
        assert text == completion.text
        assert tokens.tolist() == list(completion.token_ids)
        np.testing.assert_allclose(logprobs, completion.logprobs.values, atol=1e-4)
    for row, want in zip(output.left_padded_prompt_tokens, expected, strict=True):
        assert row[-len(want.prompt_token_ids) :].tolist() == want.prompt_token_ids


def test_an_episode_has_the_tokens_and_their_logprobs(worker, sampler):
    from tunix.experimental.common.datatypes import RolloutRequest

    asked = RolloutRequest(
        prompt_id="one",
        metadata={"env_config": {"question": PROMPTS[0], "prompts": PROMPTS[0]}},
        generation_kwargs={"max_tokens": 12, "return_logprobs": True},
    )
    answer = asyncio.run(worker.generate(asked))
    assert answer.error is None, answer.error
    (segment,) = [each for each in answer.segments if each.source == "assistant"]
    alone = sample(sampler, request(answer.prompt_tokens, return_logprobs=True))
    assert PROMPTS[0] in sampler.llm.tokenizer.decode(answer.prompt_tokens.tolist())
    assert segment.tokens.tolist() == alone.token_ids.tolist()
    np.testing.assert_allclose(segment.logps, alone.logprobs, atol=1e-4)
    assert answer.env_reward == len(alone.text)


def test_a_conversation_and_token_ids_are_prompts_too(sampler):
    messages = [{"role": "user", "content": PROMPTS[0]}]
    ids = sampler.llm.tokenizer.apply_chat_template(messages, tokenize=True)
    several = sample(sampler, [request(messages), request(np.array(ids)), request(messages[0])])
    assert [each.prompt_token_ids.tolist() for each in several] == [list(ids)] * 3
    alone = sample(sampler, request(ids), return_logprobs=True)
    assert alone.token_ids.tolist() == several[0].token_ids.tolist()
    assert several[0].logprobs is None
    assert alone.logprobs.shape == alone.token_ids.shape
    assert alone.finish_reason == "length"


def test_tunixs_trainer_scores_a_sample_as_the_engine_did(sampler):
    from flax import nnx
    from tunix.rl import common

    drawn = sample(sampler, request(PROMPTS[0], temperature=0.5, return_logprobs=True))
    graph, state = nnx.split(tunix_run.make_model(tunix_run.make_mesh()))
    rows = drawn.prompt_token_ids[None], drawn.token_ids[None]
    scores = common.compute_per_token_logps(
        graph, state, *map(jnp.asarray, rows), 0, 0, temperature=0.5
    )
    np.testing.assert_allclose(drawn.logprobs, np.asarray(scores)[0], atol=1e-3)


def test_a_seed_repeats_a_call_but_not_a_request(sampler):
    def draw(*labels, seed=3):
        asked = [request(PROMPTS[0], label, temperature=1.0, seed=seed) for label in labels]
        return [each.token_ids.tolist() for each in sample(sampler, asked)]

    first = draw("a", "a")
    assert first == draw("a", "a")
    assert first[0] != first[1]
    assert draw("b") != draw("a") == first[:1]
    assert draw("a", seed=jax.random.key(3)) == draw("a", seed=jax.random.key(3))


def test_a_workers_sync_takes_tunixs_own_parameters(worker, sampler, expected):
    from flax import nnx

    model = tunix_run.make_model(tunix_run.make_mesh())
    state = nnx.state(model, nnx.Param)
    before = jax.tree.map(lambda x: x, state)
    changed = jax.tree.map(lambda x: x * 1.5, state)

    async def sync(tree):
        await worker.pre_weight_sync(tree)
        version = await worker.weight_sync(tree)
        await worker.post_weight_sync(tree)
        output = await worker.sample_prompts(PROMPTS)
        return version, [row.tolist() for row in output.tokens]

    async def both():
        return await sync(changed), await sync(SimpleNamespace(weights=before))

    versions = sampler.llm.weight_version
    (first, others), (second, tokens) = asyncio.run(both())
    wanted = [list(each.outputs[0].token_ids) for each in expected]
    assert others != wanted
    assert tokens == wanted
    assert second == first + 1
    assert sampler.llm.weight_version == versions + 2
    assert sample(sampler, request("One")).metadata == {"weight_version": versions + 2}


def test_weights_of_a_request_without_any_come_from_the_trainer(sampler):
    from flax import nnx
    from tunix.experimental.rollout import sampler as protocol

    asked = protocol.WeightSyncRequest(policy_version=41)
    with pytest.raises(ValueError, match="the sync request has no weights; give"):
        asyncio.run(sampler.weight_sync(asked))
    model = tunix_run.make_model(tunix_run.make_mesh())
    sampler._weights = lambda: nnx.state(model, nnx.Param)
    assert asyncio.run(sampler.weight_sync(asked)) == 41
    assert asyncio.run(sampler.weight_sync()) == 42
    sampler._weights = None
    with pytest.raises(ValueError, match="embedder"):
        asyncio.run(sampler.weight_sync({"lm_head": np.ones((2, 2), np.float32)}))


@pytest.mark.parametrize(
    ("params", "cause"),
    [
        ({"return_logits": True}, "JaxinferSampler has no return_logits; leave it out"),
        ({"beam_size": 2}, "JaxinferSampler has no beam_size; leave it out"),
        ({"temperature": -1.0}, "temperature"),
    ],
)
def test_what_the_engine_can_not_do_is_one_clear_error(sampler, params, cause):
    with pytest.raises(ValueError, match=cause):
        sample(sampler, [request("One"), request("Two", **params)])
    assert asyncio.run(sampler.get_load_info()).num_requests_running == 0


def test_load_and_pauses_are_the_engines(sampler):
    async def watch():
        await sampler.pause()
        waiting = asyncio.create_task(sampler.sample(request(PROMPTS[0], max_tokens=12)))
        async with asyncio.timeout(60):
            while not (load := await sampler.get_load_info()).num_requests_waiting:
                await asyncio.sleep(0.01)
        assert not waiting.done()
        await sampler.resume()
        return load, await waiting, await sampler.get_load_info()

    load, response, after = asyncio.run(watch())
    assert (load.num_requests_waiting, load.num_requests_running) == (1, 0)
    assert len(response.token_ids) == 12
    assert (after.num_requests_waiting, after.num_requests_running) == (0, 0)


def test_a_text_alone_is_one_prompt(sampler, expected):
    (alone,) = sample(sampler, [PROMPTS[0]])
    assert alone.prompt_token_ids.tolist() == expected[0].prompt_token_ids
    assert sample(sampler, PROMPTS[0]).prompt_token_ids.tolist() == expected[0].prompt_token_ids


def test_a_mapping_is_one_or_makes_one():
    from jaxinfer.integrations.tunix_sampler import JaxinferSampler

    with pytest.raises(TypeError, match="mapping must be a ParamsMapping, got int"):
        JaxinferSampler(mapping=3)


def test_a_sampler_that_was_not_started_says_so():
    from jaxinfer.integrations.tunix_sampler import JaxinferSampler

    with pytest.raises(RuntimeError, match=r"no engine yet: call initialize\(\) first"):
        sample(JaxinferSampler(**SMALL), request("One"))


def test_a_sampler_that_stops_cancels_what_runs():
    from jaxinfer.integrations.tunix_sampler import JaxinferSampler

    async def run():
        sampler = JaxinferSampler(**SMALL)
        await sampler.start()
        await sampler.pause()
        running = asyncio.create_task(sampler.sample(request("One", return_logprobs=True)))
        async with asyncio.timeout(60):
            while not (await sampler.get_load_info()).num_requests_waiting:
                await asyncio.sleep(0.01)
        await sampler.stop()
        with pytest.raises(RuntimeError, match=r"closed|shut down"):
            await sampler.sample(request("One"))
        return await running

    assert asyncio.run(run()).finish_reason == "cancelled"


def test_transports_between_processes_are_refused(sampler):
    async def ask():
        assert await sampler.bind_weight_sync() is None
        assert await sampler.migrate_kv_cache("a", "b", [1], route_key="c") is False
        assert await sampler.get_transfer_status("a") == "SUCCESS"
        assert await sampler.get_mesh() is None
        await sampler.get_weight_sync_metadata()

    with pytest.raises(NotImplementedError, match="takes weights within its process"):
        asyncio.run(ask())
