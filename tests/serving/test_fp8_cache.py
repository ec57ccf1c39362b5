"""Engines with an fp8 KV cache: their answers, how requests share and move it, what is refused."""

import numpy as np
import pytest

from jaxinfer import LLM, EngineConfig, SamplingParams
from jaxinfer.kernels.fp8 import FP8
from jaxinfer.model.sharding import make_mesh
from tests.serving.runner.tiny_runner import poison
from tests.serving.small_llm import GREEDY, held_blocks, ids, small_llm

_RNG = np.random.default_rng(3)
_SHARED = _RNG.integers(0, 512, 40).tolist()
_PROMPTS = [_RNG.integers(0, 512, count).tolist() for count in (1, 2, 15, 16, 17, 40)]
_PROMPTS += [[*_SHARED, 5], [*_SHARED, 6, 7]]


@pytest.fixture(scope="module")
def alone():
    """Each prompt's answer by an engine that runs it alone, whole, with nothing cached."""
    with small_llm(kv_cache_dtype="fp8", enable_prefix_caching=False) as llm:
        return [ids(llm.generate([prompt], GREEDY, use_tqdm=False))[0] for prompt in _PROMPTS]


@pytest.mark.parametrize(
    "settings",
    [{}, {"block_size": 8, "num_kv_blocks": 129}, {"mesh": 2}, {"max_num_batched_tokens": 16}],
    ids=str,
)
@pytest.mark.slow
def test_batches_chunks_pages_prefix_hits_and_meshes_change_no_token(alone, settings):
    if "mesh" in settings:
        settings = {"mesh": make_mesh(settings["mesh"])}
    with small_llm(kv_cache_dtype="fp8", **settings) as llm:
        runner = llm._loaded.replicas[0].runner
        assert {leaf.dtype for leaf in (runner.resident.kv[0].k, runner.resident.kv[0].v)} == {FP8}
        assert runner.resident.kv[0].k_scale is None
        poison(runner)  # what was never written is never read
        assert ids(llm.generate(_PROMPTS, GREEDY, use_tqdm=False)) == alone
        again = llm.generate(_PROMPTS, GREEDY, use_tqdm=False)
        assert ids(again) == alone
        assert again[-1].num_cached_tokens >= 32


@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_requests_that_were_preempted_go_on_alike(alone, mode):
    settings = {"preemption_mode": mode, "swap_space": 0.05 if mode == "swap" else 0.0}
    with small_llm(kv_cache_dtype="fp8", **settings) as llm, held_blocks(llm, 5):
        assert ids(llm.generate(_PROMPTS, GREEDY, use_tqdm=False)) == alone
        assert llm._loaded.replicas[0].scheduler.num_preemptions


def test_the_bundled_models_log_probabilities_stay_near_those_of_a_full_cache():
    text = (
        "Once upon a time there was a happy cat named Hugo. Hugo lived in the desert with a friend"
    )
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
    sizes = {"max_num_seqs": 2, "max_model_len": 128, "num_kv_blocks": 33, "show_progress": False}
    found, held = {}, {}
    for dtype in ("auto", "fp8"):
        with LLM(kv_cache_dtype=dtype, **sizes) as llm:
            (output,) = llm.generate(text, params, use_tqdm=False)
            each = [next(iter(token.values())) for token in output.prompt_logprobs[1:]]
            found[dtype] = np.array([token.logprob for token in each])
            held[dtype] = llm.report.kv_bytes
    assert held["auto"] == 4 * held["fp8"]  # of float32
    differences = np.abs(found["auto"] - found["fp8"])
    # Measured: 0.0076 on average, and 0.089 at most.
    assert 0 < differences.mean() < 0.015
    assert differences.max() < 0.2


@pytest.mark.parametrize("backend", ["numba", "triton"])
def test_backends_that_do_not_read_it_are_refused_by_name(backend, monkeypatch):
    monkeypatch.setattr("jaxinfer.kernels.choice._triton_obstacle", lambda *_: None)
    with pytest.raises(ValueError, match=f"attention_backend='{backend}' reads no fp8_e4m3 KV"):
        small_llm(kv_cache_dtype="fp8", attention_backend=backend)


def test_the_short_name_is_the_long_ones():
    assert EngineConfig(kv_cache_dtype="fp8") == EngineConfig(kv_cache_dtype="fp8_e4m3")
