"""A second start reads what the first compiled, and runs programs while it reads others."""

import json
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import jax
import pytest

from jaxinfer.serving.compile.cache import executable_store
from jaxinfer.serving.compile.cache.persistent_cache import persistent_cache
from jaxinfer.serving.programs.kinds.copy_blocks import CopyBlocksKey
from jaxinfer.serving.programs.kinds.sampler import SamplerKey
from jaxinfer.serving.runner import ahead_of_time
from tests.serving.runner import tiny_runner
from tests.serving.runner.tiny_runner import make_runner
from tests.serving.small_llm import PROMPTS, small_llm


@pytest.fixture(autouse=True)
def kept_by_the_engine(monkeypatch):
    """As on a GPU."""
    monkeypatch.setattr(executable_store, "_LEFT_TO_JAX", ())


def _answers(llm):
    with llm:
        params = tiny_runner.SamplingParams(**tiny_runner.GREEDY)
        outputs = llm.generate(PROMPTS, params, use_tqdm=False)
        return [output.outputs[0].token_ids for output in outputs], llm.start_up, llm


def test_a_second_engine_traces_nothing_and_answers_the_same(tmp_path):
    settings = {"compilation_cache_dir": str(tmp_path)}
    cold = small_llm(**settings)
    expected = _answers(cold)[0]
    kept = {path.name for path in (tmp_path / "compiled").iterdir()}
    assert len(kept) == 3
    assert not list(tmp_path.glob("*decode*-cache"))  # JAX keeps no second copy
    warm = small_llm(**settings)
    lowering = warm._loaded.replicas[0].runner._lowering
    assert _answers(warm)[0] == expected
    assert (lowering.num_traced, lowering.num_lowered) == (0, 0)
    assert lowering.num_read == len(kept)
    assert {path.name for path in (tmp_path / "compiled").iterdir()} == kept


_START = """
import json, sys
from jaxinfer.serving.compile.cache import executable_store
executable_store._LEFT_TO_JAX = ()
from jaxinfer import LLM, SamplingParams
sizes = {"max_model_len": 64, "max_num_seqs": 2, "show_progress": False}
with LLM(attention_backend="numba", compilation_cache_dir=sys.argv[1], **sizes) as llm:
    params = SamplingParams(temperature=0.0, max_tokens=6)
    (output,) = llm.generate("Once", params, use_tqdm=False)
    lowering = llm._loaded.replicas[0].runner._lowering
    print(json.dumps([output.outputs[0].token_ids, lowering.num_traced, lowering.num_lowered]))
"""


def test_a_process_that_has_traced_nothing_runs_kernels_that_it_reads(tmp_path):
    """Which only tracing, or reading them, would import and register with XLA."""
    started = []
    for _ in range(2):
        command = [sys.executable, "-c", _START, str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        started.append(json.loads(done.stdout))
    (cold_tokens, *cold), (warm_tokens, *warm) = started
    assert cold_tokens == warm_tokens != []
    assert (cold, warm) == ([3, 3], [0, 0])


def test_without_a_directory_nothing_is_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    _answers(small_llm(compilation_cache_dir=""))
    assert not list(tmp_path.iterdir())


def test_jax_keeps_the_programs_of_replicas_which_share_them(tmp_path):
    settings = {"compilation_cache_dir": str(tmp_path), "data_parallel_size": 2}
    expected = _answers(small_llm(compilation_cache_dir=str(tmp_path)))[0]
    for path in (tmp_path / "compiled").iterdir():
        path.unlink()
    assert _answers(small_llm(**settings))[0] == expected
    assert not list((tmp_path / "compiled").iterdir())


@pytest.fixture
def few_programs(monkeypatch):
    keys = [CopyBlocksKey(4), SamplerKey(4, "temperature"), SamplerKey(1, "temperature")]
    monkeypatch.setattr(ahead_of_time, "all_programs", lambda buckets, *, swaps: keys)
    monkeypatch.setattr(ahead_of_time, "is_one_accelerator", lambda plan: True)
    return keys


def _compile_all(runner):
    """What happens to programs and pages, in order, as on one accelerator."""
    kv = runner.resident.kv
    runner.launcher.resident = runner.resident._replace(kv=None)
    jax.block_until_ready(kv)
    events, reset, result = [], runner.reset_cache, runner._compiled._result
    runner.reset_cache = lambda: (events.append("pages"), reset())
    runner._compiled._result = lambda key: (events.append("ready"), result(key))[1]

    class Recorder(type(runner._compiled)):
        def __getitem__(self, key):
            events.append("run")
            return super().__getitem__(key)

    runner._compiled.__class__ = Recorder
    runner.compile_all()
    runner.close()
    return events


def test_pages_come_before_programs_that_are_read_and_after_ones_that_compile(
    tmp_path, few_programs
):
    cold = _compile_all(make_runner(compilation_cache_dir=str(tmp_path)))
    assert cold == ["ready"] * 3 + ["pages"] + ["run"] * 9
    warm = _compile_all(make_runner(compilation_cache_dir=str(tmp_path)))
    assert warm == ["ready", "pages", *["run"] * 3, *(["ready"] + ["run"] * 3) * 2]


def test_a_start_takes_no_other_engines_cache_for_the_users(tmp_path):
    """As where another engine of the process reads its weights meanwhile."""
    is_inside, may_leave = threading.Event(), threading.Event()

    def read_weights():
        with persistent_cache(str(tmp_path / "other")):
            is_inside.set()
            may_leave.wait()

    with ThreadPoolExecutor(2) as pool:
        pool.submit(read_weights)
        is_inside.wait()
        starting = pool.submit(small_llm, compilation_cache_dir=str(tmp_path / "mine"))
        time.sleep(0.5)  # time for it to look
        may_leave.set()
        llm = starting.result()
    store = llm._loaded.replicas[0].runner._lowering.executables
    _answers(llm)
    assert store is not None
    assert len(list((tmp_path / "mine" / "compiled").iterdir())) == 3
    assert not list((tmp_path / "other").iterdir())
