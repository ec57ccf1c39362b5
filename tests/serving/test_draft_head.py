"""Engines with an EAGLE-3 draft head: answers stay what they are, and drafts are the head's."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer import SamplingParams
from jaxinfer.config import EngineConfig
from jaxinfer.errors import ModelLoadError
from jaxinfer.model.draft_head.files import read_draft_head
from jaxinfer.model.draft_head.forward import draft_forward
from jaxinfer.model.draft_head.layer import features_of
from jaxinfer.model.draft_head.weights import save_draft_head
from jaxinfer.model.forward import residual_stream
from jaxinfer.serving.programs.kinds.speculative_decode import SpeculativeDecodeKey
from jaxinfer.serving.programs.speculative.head_drafter import HeadDrafter
from jaxinfer.serving.startup.model_files import read_head_of
from jaxinfer.speculative_config import SpeculativeConfig
from tests.lazy import torch
from tests.model.draft_head.random_head import head_config, random_head
from tests.model.draft_head.torch_head import TorchHead
from tests.serving.small_llm import CONFIG, held_blocks, small_llm, small_params
from tests.serving.test_speculative import PROMPTS, SAMPLING, answers, launched_keys, params_of

HEAD = head_config(CONFIG, draft_vocab_size=100, norm_before_fc=True)
NUM_DRAFTS = 4


@pytest.fixture(scope="module")
def plain():
    with small_llm() as llm:
        yield llm


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    directory = tmp_path_factory.mktemp("head")
    save_draft_head(random_head(HEAD), HEAD, directory)
    return directory


def settings(directory):
    model = {"method": "eagle3", "model": str(directory), "num_speculative_tokens": NUM_DRAFTS}
    return {"speculative_config": model}


@pytest.fixture(scope="module")
def drafting(directory):
    with small_llm(**settings(directory)) as llm:
        yield llm


def always_draft(monkeypatch):
    """Drafts of a random head are hardly ever right, and would soon rest."""
    monkeypatch.setattr("jaxinfer.serving.requests.draft_record._LEAST_GAIN", 0.0)


@pytest.mark.parametrize("name", SAMPLING)
def test_a_head_changes_no_answer(plain, drafting, name, monkeypatch):
    always_draft(monkeypatch)
    expected = answers(plain, params_of(name))
    for _ in range(2):  # the second time prefixes are cached
        found = answers(drafting, params_of(name))
        assert [each[:3] for each in found] == [each[:3] for each in expected]
        for (*_, total), (*_, wanted) in zip(found, expected, strict=True):
            assert total == pytest.approx(wanted, abs=1e-4)


LONG = [[*range(1, 30)], [*range(1, 30), 7, 8], [3] * 40, [5, 4] * 12]


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, marks=pytest.mark.slow),
        {"preemption_mode": "swap", "swap_space": 0.01},
        pytest.param(
            {"preemption_mode": "swap", "swap_space": 0.01, "tensor_parallel_size": 2},
            marks=pytest.mark.slow,
        ),
        pytest.param({"kv_cache_dtype": "int8"}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_few_blocks_and_long_prompts_change_no_answer(directory, options, monkeypatch):
    always_draft(monkeypatch)
    params = [params_of(name, max_tokens=20) for name in ("greedy", "top_p", "temperature")]
    params.append(params_of("penalty", max_tokens=20))
    found = []
    for more in ({}, settings(directory)):
        with small_llm(max_num_batched_tokens=16, num_decode_steps=1, **options, **more) as llm:
            outputs = []
            for left in (8, 64):
                with held_blocks(llm, left):
                    outputs += llm.generate(LONG, params, use_tqdm=False)
            found.append([output.outputs[0].token_ids for output in outputs])
            preempted = sum(output.metrics.num_preemptions for output in outputs)
            assert preempted > 0
    assert found[0] == found[1]


@pytest.mark.parametrize(
    "options",
    [
        {"tensor_parallel_size": 2},
        {"data_parallel_size": 2},
        pytest.param({"eager": True}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_a_head_on_two_devices_or_without_compiling(plain, directory, options, monkeypatch):
    always_draft(monkeypatch)
    sampling = params_of("top_p", max_tokens=10)
    with small_llm(**settings(directory), **options) as llm:
        found = answers(llm, sampling)
    assert [each[:3] for each in found] == [each[:3] for each in answers(plain, sampling)]


def test_after_a_sleep_and_other_weights_the_head_is_there(plain, directory, monkeypatch):
    always_draft(monkeypatch)
    sampling = params_of("greedy", max_tokens=10)
    expected = [each[0] for each in answers(plain, sampling)]
    with small_llm(**settings(directory)) as llm:
        for level in (1, 2):
            llm.sleep(level=level)
            llm.wake_up()
            if level == 2:
                llm.update_params(small_params())
            assert [each[0] for each in answers(llm, sampling)] == expected
        llm.update_params(small_params())
        assert [each[0] for each in answers(llm, sampling)] == expected


def test_a_head_may_be_named_by_a_path_and_its_errors_say_whose_they_are(directory, tmp_path):
    config = SpeculativeConfig(method="eagle3", model=directory)
    assert config.model == str(directory)
    with pytest.raises(ModelLoadError, match=r"^speculative_config: model: .*no such directory"):
        small_llm(**settings(tmp_path / "nowhere"))


def test_a_head_on_the_hub_is_taken_at_its_revision(directory, monkeypatch):
    asked = []

    def download(name, *, revision, allow_patterns):
        asked.append((name, revision))
        return str(directory)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    head = {"method": "eagle3", "model": "someone/head", "revision": "v2"}
    config = EngineConfig(speculative_config=head)
    assert read_head_of(config, CONFIG).config == HEAD
    assert asked == [("someone/head", "v2")]


def torch_head(directory):
    """The head in a directory, in PyTorch."""
    import safetensors.torch

    return TorchHead(
        safetensors.torch.load_file(directory / "model.safetensors"),
        read_draft_head(directory, CONFIG).config.to_hf(),
        torch.from_numpy(np.array(small_params()["model"]["embed_tokens"])),
    )


def features_in_torch(head, states, tokens):
    _, seen = residual_stream(small_params(), CONFIG, jnp.asarray(tokens), watched=(0, 1))
    return head.features([torch.from_numpy(np.array(seen[layer])) for layer in states])


@pytest.fixture
def recorded(monkeypatch):
    """The lengths of the rows that engines draft for, most drafts of each, and the drafts."""
    records, draft = [], HeadDrafter.draft

    def drafting(self, params, kv, rows, state, **options):
        kv, drafts = draft(self, params, kv, rows, state, **options)
        jax.debug.callback(
            lambda *arrays: records.extend(zip(*(x.tolist() for x in arrays), strict=True)),
            rows.lengths,
            rows.most_gained - 1,
            drafts,
        )
        return kv, drafts

    monkeypatch.setattr(HeadDrafter, "draft", drafting)
    return records


def trained(directory, prompts, plain):
    """A head whose vocabulary's rows are fitted to the answers, so that some drafts are right."""
    config = dataclasses.replace(HEAD, draft_vocab_size=CONFIG.vocab_size)
    params: Any = jax.tree.map(jnp.asarray, random_head(config))
    sampling = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
    inputs, wanted = [], []
    for output in plain.generate(prompts, sampling, use_tqdm=False):
        tokens = [*output.prompt_token_ids, *output.outputs[0].token_ids]
        _, seen = residual_stream(small_params(), CONFIG, jnp.asarray(tokens), watched=(0, 1))
        features = features_of(params, [seen[layer] for layer in config.states], config)
        normed = draft_forward(params, config, features, seen[0]).normed
        inputs.append(np.asarray(normed)[1:-1])
        wanted += tokens[2:]
    x, targets = np.concatenate(inputs), np.eye(CONFIG.vocab_size)[wanted]
    ridge = np.linalg.solve(x.T @ x + 1.0 * np.eye(x.shape[1]), x.T @ targets)
    params["lm_head"] = ridge.T.astype(np.float32)
    save_draft_head(params, config, directory)
    return directory


@pytest.mark.slow
def test_an_engine_drafts_what_the_head_says(plain, tmp_path, monkeypatch, recorded):
    always_draft(monkeypatch)
    prompts = [*PROMPTS, [*range(40, 60)]]
    trained(tmp_path, prompts, plain)
    head, states = torch_head(tmp_path), read_draft_head(tmp_path, CONFIG).config.states
    sampling = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
    # Without a cache of programs, which would not call back.
    with small_llm(**settings(tmp_path), compilation_cache_dir="") as llm:
        for prompt in prompts * 2:  # the second time with a cached prefix
            recorded.clear()
            (output,) = llm.generate([prompt], sampling, use_tqdm=False)
            jax.effects_barrier()
            tokens = [*prompt, *output.outputs[0].token_ids]
            features = features_in_torch(head, states, tokens)
            rows = [row for row in recorded if row[0]]
            assert len(rows) > 5
            for length, left, drafts in rows:
                most = min(left, NUM_DRAFTS)
                expected = head.drafts(features, tokens[:length], most)
                assert drafts[:most] == expected, length
            assert output.metrics is not None
            assert output.metrics.num_accepted_tokens > 3


def test_steps_with_a_head_are_programs_of_their_own(drafting, plain, monkeypatch):
    always_draft(monkeypatch)
    ask = lambda llm: lambda: llm.generate([PROMPTS[0]], params_of("greedy"), use_tqdm=False)  # noqa: E731
    keys = launched_keys(drafting, ask(drafting))
    assert sum(isinstance(key, SpeculativeDecodeKey) for key in keys) > 5
    assert not any(
        isinstance(key, SpeculativeDecodeKey) for key in launched_keys(plain, ask(plain))
    )


def test_what_is_no_head_of_the_model_is_refused_at_the_start(directory, tmp_path):
    def refused(model, **options):
        config = {"method": "eagle3", "model": str(model)}
        with pytest.raises(ModelLoadError) as caught:
            small_llm(speculative_config=config, **options)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert "config.json: no such file" in refused(tmp_path)
    assert "no such directory" in refused(tmp_path / "nothing")
    assert "a head for another model: hidden_size is 256" in refused("bundled")
    with pytest.raises(ValueError, match="runner='pooling' gives none"):
        small_llm(runner="pooling", **settings(directory))
