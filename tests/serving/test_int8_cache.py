"""Engines with an int8 KV cache: their answers, how requests share and move it, what is refused."""

import pickle
import subprocess
import sys

import numpy as np
import pytest

from jaxinfer import LLM, EngineConfig, SamplingParams
from jaxinfer.kernels.policy import Kernels
from jaxinfer.model.modules import abstract_params
from jaxinfer.model.sharding import ShardingRules, make_mesh
from jaxinfer.serving.compile.program_store import ProgramStore, export_program
from jaxinfer.serving.compile.tracing_worker import make_task
from jaxinfer.serving.programs.kinds.block_rows import BlockRowsKey
from jaxinfer.serving.programs.layout import DecodeShape
from jaxinfer.serving.programs.program_set import program_of
from jaxinfer.serving.programs.programs import Programs
from jaxinfer.serving.programs.steps import StepContext
from tests.serving.runner.tiny_runner import Loop, make_runner, poison, prompts
from tests.serving.small_llm import CONFIG, GREEDY, held_blocks, ids, small_llm

_RNG = np.random.default_rng(3)
_SHARED = _RNG.integers(0, 512, 40).tolist()
_PROMPTS = [_RNG.integers(0, 512, count).tolist() for count in (1, 2, 15, 16, 17, 40)]
_PROMPTS += [[*_SHARED, 5], [*_SHARED, 6, 7]]
_TEXTS = [
    "Once upon a time there was a",
    "The capital of France is Paris. The river that flows",
    "[1, 2, 3, 5, 8, 13, 21,",
    "A long sentence goes on " * 20,
]


@pytest.mark.parametrize("backend", ["auto", pytest.param("xla", marks=pytest.mark.slow("alone"))])
def test_an_engine_for_pooling_reads_it_too(backend):
    settings = {"attention_backend": backend, "runner": "pooling"}
    with small_llm(**settings, kv_cache_dtype="int8") as llm, small_llm(**settings) as plain:
        assert llm._loaded.replicas[0].runner.resident.kv[0].k.dtype == np.int8
        for one, other in zip(llm.embed(_PROMPTS), plain.embed(_PROMPTS), strict=True):
            assert 0.99 < one.embedding @ other.embedding < 1 - 1e-9 or len(one.token_ids) < 3
        once, again = (llm.embed(_PROMPTS) for _ in range(2))  # the second finds its prefixes
        for one, other in zip(once, again, strict=True):
            np.testing.assert_allclose(one.embedding, other.embedding, atol=1e-6)


@pytest.fixture(scope="module")
def alone():
    """Each prompt's answer by an engine that runs it alone, whole, with nothing cached."""
    with small_llm(kv_cache_dtype="int8", enable_prefix_caching=False) as llm:
        return [ids(llm.generate([prompt], GREEDY, use_tqdm=False))[0] for prompt in _PROMPTS]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"attention_backend": "xla"},
        {"block_size": 8, "num_kv_blocks": 129},
        {"mesh": 2},
        {"num_decode_steps": 1, "max_num_batched_tokens": 16},
    ],
    ids=str,
)
def test_batches_chunks_pages_prefix_hits_and_meshes_change_no_token(alone, settings):
    if "mesh" in settings:
        settings = settings | {"mesh": make_mesh(settings["mesh"])}
    with small_llm(kv_cache_dtype="int8", **settings) as llm:
        runner = llm._loaded.replicas[0].runner
        assert runner.resident.kv[0].k.dtype == np.int8
        assert runner.resident.kv[0].k_scale.shape == runner.resident.kv[0].k.shape[:3]
        poison(runner)  # what was never written is never read
        assert ids(llm.generate(_PROMPTS, GREEDY, use_tqdm=False)) == alone
        again = llm.generate(_PROMPTS, GREEDY, use_tqdm=False)
        assert ids(again) == alone
        assert again[-1].num_cached_tokens >= 32


def test_requests_that_were_preempted_are_computed_again_alike(alone):
    with small_llm(kv_cache_dtype="int8") as llm, held_blocks(llm, 5):
        assert ids(llm.generate(_PROMPTS, GREEDY, use_tqdm=False)) == alone
        assert llm._loaded.replicas[0].scheduler.num_preemptions


def test_blocks_that_were_swapped_out_come_back_with_their_scales():
    given = prompts(np.random.default_rng(0), (20, 33, 7))
    answers = []
    for preempts in (False, True):
        runner = make_runner(kv_cache_dtype="int8", preemption_mode="swap", swap_space=0.05)
        poison(runner)
        loop = Loop(runner)
        for prompt in given:
            loop.add(prompt, max_tokens=12)
        if preempts:
            for _ in range(4):
                loop.step()
            loop.scheduler.preempt(2)
        answers.append(loop.run())
        assert bool(loop.scheduler.num_preemptions) == preempts
        runner.close()
    assert answers[0] == answers[1]


def test_samples_of_a_prompt_continue_from_copies_of_its_last_block(alone):
    several = SamplingParams(n=3, temperature=0.0, max_tokens=6, ignore_eos=True)
    with small_llm(kv_cache_dtype="int8") as llm:
        poison(llm._loaded.replicas[0].runner)
        outputs = llm.generate(_PROMPTS[2:5], several, use_tqdm=False)
        for output, expected in zip(outputs, alone[2:5], strict=True):
            assert [each.token_ids for each in output.outputs] == [expected] * 3


def test_nan_in_a_scale_fails_the_request_that_meets_it_alone(alone):
    with small_llm(kv_cache_dtype="int8", max_num_seqs=4) as llm:
        prompt = _PROMPTS[5]
        llm.generate([prompt], GREEDY, use_tqdm=False)
        runner = llm._loaded.replicas[0].runner
        runner.launcher.resident = runner.resident._replace(
            kv=tuple(pages._replace(v_scale=pages.v_scale * np.nan) for pages in runner.resident.kv)
        )
        (bad,) = llm.generate([prompt], GREEDY, use_tqdm=False)
        assert bad.outputs[0].finish_reason == "error"
        assert ids(llm.generate([prompt], GREEDY, use_tqdm=False)) == [alone[5]]


@pytest.fixture(scope="module")
def bundled():
    """Outputs of the bundled model with either cache, and what a block takes."""
    params = SamplingParams(
        temperature=0.0, max_tokens=24, ignore_eos=True, prompt_logprobs=0, logprobs=0
    )
    found = {}
    for dtype in ("auto", "int8"):
        with LLM(
            kv_cache_dtype=dtype,
            max_num_seqs=4,
            max_num_batched_tokens=256,
            max_model_len=256,
            num_kv_blocks=65,
            show_progress=False,
        ) as llm:
            outputs = llm.generate(_TEXTS, params, use_tqdm=False)
            found[dtype] = outputs, llm.report.kv_bytes
    return found


def _logprobs(outputs):
    """Of the prompts' tokens, and of the first sampled one."""
    positions = [
        each
        for output in outputs
        for each in (*output.prompt_logprobs[1:], output.outputs[0].logprobs[0])
    ]
    return np.array([next(iter(each.values())).logprob for each in positions])


def test_the_bundled_models_log_probabilities_stay_near_those_of_a_full_cache(bundled):
    (full, full_bytes), (integers, bytes_held) = bundled["auto"], bundled["int8"]
    assert full_bytes / bytes_held == 4 * 128 / (128 + 4)
    differences = np.abs(_logprobs(full) - _logprobs(integers))
    # Measured: 0.021 on average, and 0.15 at most.
    assert 0 < differences.mean() < 0.04
    assert differences.max() < 0.3
    assert ids(full) == ids(integers)


def test_its_programs_are_kept_and_traced_alike_elsewhere(tmp_path):
    mesh, rules, kernels = make_mesh(1), ShardingRules(), Kernels("numba")
    context = StepContext(CONFIG, mesh, rules, kernels, 16, "float32", kv_cache_dtype="int8")
    params = abstract_params(CONFIG, "float32", mesh, rules)
    programs, store = Programs(context, params, 9, 3), ProgramStore(tmp_path)
    work = {DecodeShape(2, 4): "decode", BlockRowsKey(1, 4, out=False): "rows"}
    task = make_task(programs, work, store=store, platform="cpu")
    command = "import pickle, sys; from jaxinfer.serving.compile.tracing_worker import trace; "
    command += "trace(pickle.load(sys.stdin.buffer))"
    subprocess.run([sys.executable, "-c", command], input=pickle.dumps(task), check=True)
    for key, name in work.items():
        here, there = export_program(program_of(programs, key), "cpu"), store.load(name)
        assert there is not None
        assert there.in_avals == here.in_avals
        assert there.in_tree == here.in_tree
        assert np.dtype(np.int8) in {each.dtype for each in there.in_avals}


@pytest.mark.parametrize("backend", ["mosaic", "triton"])
def test_backends_that_do_not_read_it_are_refused_by_name(backend, monkeypatch):
    monkeypatch.setattr("jaxinfer.kernels.choice._mosaic_obstacle", lambda *_: None)
    monkeypatch.setattr("jaxinfer.kernels.choice._triton_obstacle", lambda *_: None)
    with pytest.raises(ValueError, match=f"attention_backend='{backend}' reads no int8 KV cache"):
        small_llm(kv_cache_dtype="int8", attention_backend=backend)


@pytest.mark.parametrize("dtype", ["fp8_e5m2", "float32", None, "INT8", ["int8"]])
def test_other_dtypes_are_refused_by_name(dtype):
    with pytest.raises(ValueError, match="kv_cache_dtype must be one of auto, fp8_e4m3, int8"):
        EngineConfig(kv_cache_dtype=dtype)
