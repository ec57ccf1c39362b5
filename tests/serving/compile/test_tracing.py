"""Worker processes trace what this process would, and their absence costs nothing but time."""

import dataclasses
import pickle
import subprocess
import sys

import pytest

from jaxinfer.serving.compile import lowering, shared_forward, tracing
from jaxinfer.serving.compile.lowering import Lowering
from jaxinfer.serving.compile.program_store import ProgramStore
from jaxinfer.serving.compile.shared_forward import SharedForward
from jaxinfer.serving.compile.tracing_worker import make_task
from jaxinfer.serving.programs.kinds.sampled_decode import SampledDecodeKey
from jaxinfer.serving.programs.kinds.sampler import SamplerKey
from jaxinfer.serving.programs.layout import DecodeShape, PrefillShape
from jaxinfer.serving.programs.program_set import program_of
from jaxinfer.serving.programs.steps import feed_last_tokens
from tests.serving.compile.test_lowering import _programs

pytestmark = pytest.mark.usefixtures("programs_on_disk")

_KEYS = [
    DecodeShape(4, 8),
    SamplerKey(4, "temperature"),
    PrefillShape(16, 4, 8),
    SampledDecodeKey(DecodeShape(4, 8), "temperature"),
]


@pytest.fixture
def workers_everywhere(monkeypatch):
    """Hand steps over on a CPU too, however few, where only Mosaic kernels are worth it."""
    monkeypatch.setattr(
        lowering, "_is_for_workers", lambda programs, key: not isinstance(key, SamplerKey)
    )
    monkeypatch.setattr(tracing, "_FEWEST_PROGRAMS", 1)
    monkeypatch.setattr(tracing, "usable_cores", lambda: 4)


def _lower_all(lowering, programs, keys=_KEYS):
    return {key: lowering.lower(programs, key, {}) for key in lowering.as_ready(programs, keys)}


@pytest.mark.slow
@pytest.mark.parametrize("devices", [pytest.param(1, marks=pytest.mark.exhaustive), 2])
def test_workers_trace_what_this_process_would(tmp_path, workers_everywhere, devices):
    programs, first = _programs(devices), Lowering(ProgramStore(tmp_path))
    lowered = _lower_all(first, programs)
    first.close()
    assert next(iter(lowered)) == SamplerKey(4, "temperature")  # which is not for workers here
    assert set(lowered) == set(_KEYS)
    assert (first.num_traced, first.num_read) == (1, 3)
    for key, each in lowered.items():
        made, expected = each.compile(), program_of(programs, key).lower().compile()
        made, expected = made.memory_analysis(), expected.memory_analysis()
        assert made.alias_size_in_bytes == expected.alias_size_in_bytes
        assert made.temp_size_in_bytes == expected.temp_size_in_bytes
    second = Lowering(ProgramStore(tmp_path))
    again = _lower_all(second, programs)
    assert list(again) == _KEYS  # nothing is missing, so no worker starts
    assert all(again[key].as_text() == lowered[key].as_text() for key in _KEYS)
    assert (second.num_traced, second.num_read) == (0, 4)


@pytest.mark.slow
def test_workers_start_before_it_is_known_what_they_trace_and_take_more_than_one_task(
    tmp_path, workers_everywhere
):
    programs, first = _programs(), Lowering(ProgramStore(tmp_path))
    first.prepare(programs, _KEYS[0])
    prepared = list(first._workers._processes)
    assert len(prepared) == 2
    _lower_all(first, programs, _KEYS[:2])
    _lower_all(first, programs)
    assert first._workers._processes == prepared
    assert (first.num_traced, first.num_read) == (1, 5)
    first.close()
    assert all(process.returncode is not None for process in prepared)
    first.prepare(programs, _KEYS[0])
    assert first._workers is None  # nothing is missing


def test_workers_that_fail_leave_the_tracing_to_this_process(
    tmp_path, workers_everywhere, monkeypatch
):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    programs, mine = _programs(), Lowering(ProgramStore(tmp_path))
    for keys in (_KEYS[:2], _KEYS):  # the second time their end is known
        assert set(_lower_all(mine, programs, keys)) == set(keys)
    mine.close()
    assert (mine.num_traced, mine.num_read) == (4, 2)


def test_tracing_needs_no_flax(tmp_path):
    """It takes a third of a worker's start to import."""
    store = ProgramStore(tmp_path)
    task = make_task(_programs(), {_KEYS[0]: "decode"}, store=store, platform="cpu")
    code = (
        "import pickle, sys; from jaxinfer.serving.compile.tracing_worker import trace; "
        "trace(pickle.load(sys.stdin.buffer)); sys.exit('flax' in sys.modules)"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, check=False, input=pickle.dumps(task), capture_output=True)
    assert (done.returncode, done.stdout) == (0, b"decode\n")
    assert store.holds("decode")


def test_a_function_of_the_caller_is_not_sent(tmp_path):
    """A local one can't be, and the programs that workers trace don't hold it."""
    programs = _programs()
    context = dataclasses.replace(programs.context, sampler=lambda logits, state, keys: None)
    programs = dataclasses.replace(programs, context=context)
    store = ProgramStore(tmp_path)
    task = make_task(programs, {_KEYS[0]: "decode"}, store=store, platform="cpu")
    assert pickle.loads(pickle.dumps(task)).context["sampler"] is None


def test_nothing_is_handed_over_without_slow_kernels(tmp_path, monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("a worker was started")

    monkeypatch.setattr("subprocess.Popen", refuse)
    for mine in (Lowering(ProgramStore(tmp_path)), Lowering(None)):
        mine.prepare(_programs(), _KEYS[0])
        assert list(mine.as_ready(_programs(), _KEYS)) == _KEYS


def test_programs_with_the_same_kernels_go_to_the_same_worker():
    small, large = DecodeShape(4, 8), DecodeShape(8, 8)
    decodes = [
        small,
        large,
        *(SampledDecodeKey(small, mode) for mode in ("temperature", "truncate")),
    ]
    prefills = [PrefillShape(16 * i, 4, 8) for i in range(1, 7)]
    shares = tracing._shares(tracing._groups(decodes + prefills, processes=0), 4)
    assert sorted(map(len, shares)) == [1, 2, 3, 4]
    assert [key for key in decodes if key != large] in shares
    assert {key for share in shares for key in share} == {*decodes, *prefills}


def test_no_process_that_runs_already_is_left_without_a_program():
    prefills = [PrefillShape(16 * i, 4, 8) for i in range(1, 8)]
    for processes, sizes in ((8, [0, *[1] * 7]), (3, [2, 2, 3]), (1, [7])):
        shares = tracing._shares(tracing._groups(prefills, processes), processes)
        assert sorted(map(len, shares)) == sizes


def test_one_forward_pass_serves_all_programs_that_decode_alike(monkeypatch):
    traced = []

    def count(*args, **kwargs):
        traced.append(args)
        return feed_last_tokens(*args, **kwargs)

    monkeypatch.setattr(shared_forward, "feed_last_tokens", count)
    plain = _programs()
    shared = dataclasses.replace(plain, forward=SharedForward("cpu"))
    for key in (_KEYS[0], _KEYS[3], SampledDecodeKey(DecodeShape(4, 8), "truncate")):
        made, expected = (
            program_of(shared, key).lower().compile(),
            program_of(plain, key).lower().compile(),
        )
        made, expected = made.memory_analysis(), expected.memory_analysis()
        assert made.temp_size_in_bytes == expected.temp_size_in_bytes
        assert made.alias_size_in_bytes == expected.alias_size_in_bytes
    assert len(traced) == 1
    program_of(shared, DecodeShape(8, 8)).lower()
    assert len(traced) == 2
