"""Engines with a draft head: answers stay what they are, and drafts are the head's."""

import dataclasses
import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer import LLM, SamplingParams
from jaxinfer.config import EngineConfig
from jaxinfer.errors import ModelLoadError
from jaxinfer.model.draft_head.dflash import forward as dflash
from jaxinfer.model.draft_head.dflash.layers import features_of as features_of_dflash
from jaxinfer.model.draft_head.eagle3 import forward as eagle3
from jaxinfer.model.draft_head.eagle3.layer import features_of as features_of_eagle3
from jaxinfer.model.draft_head.weights import save_draft_head
from jaxinfer.model.forward import residual_stream
from jaxinfer.serving.programs.kinds.speculative_decode import SpeculativeDecodeKey
from jaxinfer.serving.programs.speculative.dflash.drafter import DFlashDrafter
from jaxinfer.serving.programs.speculative.eagle3.drafter import Eagle3Drafter
from jaxinfer.serving.startup.draft_head import read_head_of
from jaxinfer.speculative_config import SpeculativeConfig
from tests.lazy import torch
from tests.model.draft_head.dflash.torch_dflash_head import TorchDFlashHead
from tests.model.draft_head.eagle3.torch_eagle3_head import TorchHead
from tests.model.draft_head.random_head import dflash_config, head_config, random_head
from tests.serving.always_draft import always_draft
from tests.serving.small_llm import CONFIG, held_blocks, small_llm, small_params
from tests.serving.test_speculative import (
    PROMPTS,
    SAMPLING,
    answers,
    assert_random_answers_are_equal,
    launched_keys,
    params_of,
)

CONFIGS = {
    "eagle3": head_config(CONFIG, draft_vocab_size=100, norm_before_fc=True),
    "dflash": dflash_config(CONFIG, states=(0, 1)),
}
NUM_DRAFTS = 4
exhaustive = pytest.mark.exhaustive


@pytest.fixture(scope="module")
def plain(tokenizer):
    with small_llm(tokenizer=tokenizer) as llm:
        yield llm


@pytest.fixture(scope="module", params=CONFIGS)
def method(request):
    return request.param


@pytest.fixture(scope="module")
def directory(tmp_path_factory, method):
    directory = tmp_path_factory.mktemp("head")
    save_draft_head(random_head(CONFIGS[method]), CONFIGS[method], directory)
    return directory


def settings(method, directory):
    model = {"method": method, "model": str(directory), "num_speculative_tokens": NUM_DRAFTS}
    return {"speculative_config": model}


@pytest.fixture(scope="module")
def drafting(method, directory, tokenizer):
    with small_llm(tokenizer=tokenizer, **settings(method, directory)) as llm:
        yield llm


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLING)
def test_a_head_changes_no_answer(plain, drafting, name, monkeypatch):
    always_draft(monkeypatch)
    expected = answers(plain, params_of(name))
    for _ in range(2):  # the second time prefixes are cached
        found = answers(drafting, params_of(name))
        assert [each[:3] for each in found] == [each[:3] for each in expected]
        for (*_, total), (*_, wanted) in zip(found, expected, strict=True):
            assert total == pytest.approx(wanted, abs=1e-4)


@pytest.mark.slow("each")
def test_random_prompts_are_answered_as_without(plain, drafting, monkeypatch):
    always_draft(monkeypatch)
    assert_random_answers_are_equal(drafting, plain, 50)


@pytest.mark.exhaustive
def test_two_hundred_random_prompts_are_answered_as_without(plain, drafting, monkeypatch):
    always_draft(monkeypatch)
    assert_random_answers_are_equal(drafting, plain, 200)


@pytest.mark.exhaustive
def test_random_prompts_are_answered_as_without_while_sequences_are_preempted(
    plain, drafting, monkeypatch
):
    always_draft(monkeypatch)
    scheduler = drafting._loaded.replicas[0].scheduler
    before = scheduler.num_preemptions
    assert_random_answers_are_equal(drafting, plain, 50, num_blocks=5)
    assert scheduler.num_preemptions > before


@pytest.mark.exhaustive
def test_random_prompts_on_two_devices_are_answered_as_without(
    plain, method, directory, tokenizer, monkeypatch
):
    always_draft(monkeypatch)
    with small_llm(
        **settings(method, directory), tokenizer=tokenizer, tensor_parallel_size=2
    ) as llm:
        assert_random_answers_are_equal(llm, plain, 50)


LONG = [[*range(1, 30)], [*range(1, 30), 7, 8], [3] * 40, [5, 4] * 12]


def paired(*options, **methods):
    """Each method with each of the options; all but the given pair are of the exhaustive tests."""
    pairs = [(method, each) for method in CONFIGS for each in options]
    return pytest.mark.parametrize(
        ("method", "options"),
        [
            pytest.param(method, each, marks=() if each == methods[method] else exhaustive)
            for method, each in pairs
        ],
        indirect=["method"],
        ids=str,
    )


SWAP, INT8 = {"preemption_mode": "swap", "swap_space": 0.01}, {"kv_cache_dtype": "int8"}
TWO, REPLICAS = {"tensor_parallel_size": 2}, {"data_parallel_size": 2}


@pytest.mark.slow
@paired({}, SWAP, SWAP | TWO, INT8, eagle3=INT8, dflash=SWAP)
def test_few_blocks_and_long_prompts_change_no_answer(method, directory, options, monkeypatch):
    always_draft(monkeypatch)
    params = [params_of(name, max_tokens=20) for name in ("greedy", "top_p", "temperature")]
    params.append(params_of("penalty", max_tokens=20))
    found = []
    for more in ({}, settings(method, directory)):
        with small_llm(max_num_batched_tokens=16, num_decode_steps=1, **options, **more) as llm:
            outputs = []
            for left in (8, 64):
                with held_blocks(llm, left):
                    outputs += llm.generate(LONG, params, use_tqdm=False)
            found.append([output.outputs[0].token_ids for output in outputs])
            preempted = sum(output.metrics.num_preemptions for output in outputs)
            assert preempted > 0
    assert found[0] == found[1]


@pytest.mark.slow
@paired(TWO, REPLICAS, {"eager": True}, eagle3=TWO, dflash=REPLICAS)
def test_a_head_on_two_devices_or_without_compiling(plain, method, directory, options, monkeypatch):
    always_draft(monkeypatch)
    sampling = params_of("top_p", max_tokens=10)
    with small_llm(**settings(method, directory), **options) as llm:
        found = answers(llm, sampling)
    assert [each[:3] for each in found] == [each[:3] for each in answers(plain, sampling)]


@pytest.mark.slow
def test_after_a_sleep_and_other_weights_the_head_is_there(plain, method, directory, monkeypatch):
    always_draft(monkeypatch)
    sampling = params_of("greedy", max_tokens=10)
    expected = [each[0] for each in answers(plain, sampling)]
    with small_llm(**settings(method, directory)) as llm:
        for level in (1, 2):
            llm.sleep(level=level)
            llm.wake_up()
            if level == 2:
                llm.update_params(small_params())
            assert [each[0] for each in answers(llm, sampling)] == expected
        llm.update_params(small_params())
        assert [each[0] for each in answers(llm, sampling)] == expected


def test_a_head_may_be_named_by_a_path_and_its_errors_say_whose_they_are(
    method, directory, tmp_path
):
    config = SpeculativeConfig(method=method, model=directory)
    assert config.model == str(directory)
    with pytest.raises(ModelLoadError, match=r"^speculative_config: model: .*no such directory"):
        small_llm(**settings(method, tmp_path / "nowhere"))


def test_a_head_on_the_hub_is_taken_at_its_revision(directory, method, monkeypatch):
    asked = []

    def download(name, *, revision, allow_patterns):
        asked.append((name, revision))
        return str(directory)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    head = {"method": method, "model": "someone/head", "revision": "v2"}
    config = EngineConfig(speculative_config=head)
    assert read_head_of(config, CONFIG).config == CONFIGS[method]
    assert asked == [("someone/head", "v2")]


def torch_head(method, directory):
    """The head in a directory, in PyTorch."""
    import safetensors.torch

    tensors = safetensors.torch.load_file(directory / "model.safetensors")
    config = json.loads((directory / "config.json").read_text())
    embedding = torch.from_numpy(np.array(small_params()["model"]["embed_tokens"]))
    if method == "eagle3":
        return TorchHead(tensors, config, embedding)
    vocabulary = torch.from_numpy(np.array(small_params()["lm_head"]))
    return TorchDFlashHead(tensors, config, embedding, vocabulary)


MOST_TOKENS = 64
"""What texts are padded to, so that each of the functions below is compiled once."""


@jax.jit
def _states(tokens):
    return residual_stream(small_params(), CONFIG, tokens, watched=(0, 1))[1]


def states_of(config, tokens):
    seen = _states(jnp.asarray([*tokens, *[0] * (MOST_TOKENS - len(tokens))]))
    seen = {layer: stream[: len(tokens)] for layer, stream in seen.items()}
    return [seen[layer] for layer in config.states], seen[0]


@pytest.fixture
def recorded(monkeypatch, method):
    """The lengths of the rows that engines draft for, most drafts of each, and the drafts."""
    drafter: Any = {"eagle3": Eagle3Drafter, "dflash": DFlashDrafter}[method]
    records, draft = [], drafter.draft

    def drafting(self, params, kv, rows, state, **options):
        kv, drafts = draft(self, params, kv, rows, state, **options)
        jax.debug.callback(
            lambda *arrays: records.extend(zip(*(x.tolist() for x in arrays), strict=True)),
            rows.lengths,
            rows.most_gained - 1,
            drafts,
        )
        return kv, drafts

    monkeypatch.setattr(drafter, "draft", drafting)
    return records


def eagle3_pairs(params, config, tokens):
    """What the head's vocabulary reads along a text, and the tokens that it should guess."""
    states, embeddings = states_of(config, tokens)

    @jax.jit
    def normed(params, states, embeddings):
        features = features_of_eagle3(params, states, config)
        return eagle3.draft_forward(params, config, features, embeddings).normed

    return np.asarray(normed(params, states, embeddings))[1:-1], tokens[2:]


def dflash_pairs(params, config, tokens):
    """The same of the blocks that begin at each of the tokens."""
    states, embeddings = states_of(config, tokens)
    mask = small_params()["model"]["embed_tokens"][config.mask_token_id]

    @jax.jit
    def normed(params, states, embeddings, start):
        features = features_of_dflash(params, states, config)
        block = jnp.concatenate([embeddings[start][None], *[mask[None]] * NUM_DRAFTS])
        steps = jnp.arange(len(features) + NUM_DRAFTS + 1, dtype=jnp.int32)
        visible = (steps < start) | (steps >= len(features))
        visible = jnp.broadcast_to(visible, (NUM_DRAFTS + 1, len(steps)))
        positions = start + steps[: NUM_DRAFTS + 1]
        return dflash.block_forward(params, config, features, block, positions, visible)

    inputs, wanted = [], []
    for start in range(1, len(tokens) - NUM_DRAFTS):
        inputs.append(np.asarray(normed(params, states, embeddings, jnp.int32(start)))[1:])
        wanted += tokens[start + 1 : start + 1 + NUM_DRAFTS]
    return np.concatenate(inputs), wanted


def trained(method, directory, prompts, plain):
    """A head whose vocabulary's rows are fitted to the answers, so that some drafts are right."""
    config = dataclasses.replace(CONFIGS[method], draft_vocab_size=CONFIG.vocab_size)
    params: Any = jax.tree.map(jnp.asarray, random_head(config, own=["lm_head"]))
    pairs_of = {"eagle3": eagle3_pairs, "dflash": dflash_pairs}[method]
    sampling = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
    inputs, wanted = [], []
    for output in plain.generate(prompts, sampling, use_tqdm=False):
        tokens = [*output.prompt_token_ids, *output.outputs[0].token_ids]
        read, guessed = pairs_of(params, config, tokens)
        inputs.append(read)
        wanted += guessed
    x, targets = np.concatenate(inputs), np.eye(CONFIG.vocab_size)[wanted]
    ridge = np.linalg.solve(x.T @ x + 1.0 * np.eye(x.shape[1]), x.T @ targets)
    params["lm_head"] = ridge.T.astype(np.float32)
    save_draft_head(params, config, directory)
    return directory


def check_drafts(llm, head, config, prompt, recorded):
    """Answer a prompt and compare its drafts with the reference's; how many were right."""
    recorded.clear()
    sampling = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
    (output,) = llm.generate([prompt], sampling, use_tqdm=False)
    jax.effects_barrier()
    tokens = [*prompt, *output.outputs[0].token_ids]
    states, _ = states_of(config, tokens)
    features = head.features([torch.from_numpy(np.array(state)) for state in states])
    rows = [row for row in recorded if row[0]]
    assert len(rows) > 5
    for length, left, drafts in rows:
        most = min(left, NUM_DRAFTS)
        assert drafts[:most] == head.drafts(features, tokens[:length], most), length
    return output.metrics.num_accepted_tokens


@pytest.mark.slow
def test_an_engine_drafts_what_the_head_says(plain, method, tmp_path, monkeypatch, recorded):
    always_draft(monkeypatch)
    prompts = [*PROMPTS, [*range(40, 60)]]
    trained(method, tmp_path, prompts, plain)
    head = torch_head(method, tmp_path)
    # Without a cache of programs, which would not call back.
    with small_llm(**settings(method, tmp_path), compilation_cache_dir="") as llm:
        for prompt in prompts * 2:  # the second time with a cached prefix
            assert check_drafts(llm, head, CONFIGS[method], prompt, recorded) > 3


@pytest.mark.parametrize("method", ["dflash"], indirect=True)
@pytest.mark.parametrize(
    ("size", "num_devices"),
    [pytest.param(512, 1, marks=pytest.mark.exhaustive), (512, 2), (100, 1)],
)
def test_a_head_guesses_by_the_vocabulary_of_the_model_or_its_own(
    method, size, num_devices, tmp_path, monkeypatch, recorded
):
    always_draft(monkeypatch)
    config = dataclasses.replace(CONFIGS[method], draft_vocab_size=size)
    own = () if size == CONFIG.vocab_size else ("embed_tokens", "lm_head")
    save_draft_head(random_head(config, own=own), config, tmp_path)
    head, options = torch_head(method, tmp_path), {"compilation_cache_dir": ""}
    with small_llm(
        **settings(method, tmp_path), **options, tensor_parallel_size=num_devices
    ) as llm:
        check_drafts(llm, head, config, PROMPTS[0], recorded)


@pytest.mark.slow("alone")
def test_steps_with_a_head_are_programs_of_their_own(drafting, plain, monkeypatch):
    always_draft(monkeypatch)
    params = params_of("temperature")  # with the programs of the tests above
    ask = lambda llm: lambda: llm.generate(PROMPTS, params, use_tqdm=False)  # noqa: E731
    keys = launched_keys(drafting, ask(drafting))
    assert sum(isinstance(key, SpeculativeDecodeKey) for key in keys) > 5
    assert not any(
        isinstance(key, SpeculativeDecodeKey) for key in launched_keys(plain, ask(plain))
    )


def test_what_is_no_head_of_the_model_is_refused_at_the_start(method, directory, tmp_path):
    def refused(model, **options):
        config = {"method": method, "model": str(model)}
        with pytest.raises(ModelLoadError) as caught:
            small_llm(speculative_config=config, **options)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert "config.json: no such file" in refused(tmp_path)
    assert "no such directory" in refused(tmp_path / "nothing")
    assert "'bundled' is the head of the bundled model alone, and" in refused("bundled")
    with pytest.raises(ValueError, match="runner='pooling' gives none"):
        small_llm(runner="pooling", **settings(method, directory))


def test_the_shipped_head_is_refused_for_a_model_of_equal_sizes(method):
    config = {"method": method, "model": "bundled"}
    with pytest.raises(ModelLoadError, match=r"model: 'bundled' is the head .* for it, or leave"):
        LLM("bundled-experts", speculative_config=config, show_progress=False)


@pytest.mark.parametrize("method", ["dflash"], indirect=True)
def test_more_drafts_than_a_block_has_are_refused(method, directory):
    config = settings(method, directory)["speculative_config"]
    with pytest.raises(ValueError, match=r"num_speculative_tokens=6 .* set it to at most 5"):
        small_llm(speculative_config=config | {"num_speculative_tokens": 6})


@pytest.mark.parametrize(("method", "most"), [("eagle3", 3), ("dflash", 5)], indirect=["method"])
def test_without_a_number_as_many_are_drafted_as_the_method_is_good_for(method, directory, most):
    config = {"method": method, "model": str(directory)}
    with small_llm(speculative_config=config) as llm:
        sizes = llm._loaded.replicas[0].runner._buckets.speculative
        assert sizes[0][1].num_tokens == most
