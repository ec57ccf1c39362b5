"""Worker processes trace what this process would, and their absence costs nothing but time."""

import sys

import jax
import pytest

from jaxinfer.serving import lowering, tracing
from jaxinfer.serving.layout import DecodeShape, PrefillShape
from jaxinfer.serving.lowering import Lowering
from jaxinfer.serving.program_store import ProgramStore
from jaxinfer.serving.programs import BurstKey, SamplerKey
from tests.serving.test_lowering import _programs

_KEYS = [
    DecodeShape(4, 8),
    SamplerKey(4, "greedy"),
    PrefillShape(16, 4, 8),
    BurstKey(DecodeShape(4, 8), "greedy", 2),
]


@pytest.fixture
def workers_everywhere(monkeypatch):
    """Hand steps over on a CPU too, however few, where only Mosaic kernels are worth it."""
    monkeypatch.setattr(
        lowering, "_is_for_workers", lambda programs, key: not isinstance(key, SamplerKey)
    )
    monkeypatch.setattr(lowering, "_traces_slowly", lambda programs: True)
    monkeypatch.setattr(tracing, "_FEWEST_PROGRAMS", 1)
    monkeypatch.setattr("os.cpu_count", lambda: 4)


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 2])
def test_workers_trace_what_this_process_would(tmp_path, workers_everywhere, devices):
    programs, first = _programs(devices), Lowering(ProgramStore(tmp_path))
    with first.ahead(programs, _KEYS) as ordered:
        assert ordered[0] == SamplerKey(4, "greedy")
        assert set(ordered) == set(_KEYS)
        lowered = {key: first.lower(programs, key) for key in ordered}
    assert (first.num_traced, first.num_read) == (1, 3)
    for key, each in lowered.items():
        made, expected = each.compile(), programs.lower(key).compile()
        made, expected = made.memory_analysis(), expected.memory_analysis()
        assert made.alias_size_in_bytes == expected.alias_size_in_bytes
        assert made.temp_size_in_bytes == expected.temp_size_in_bytes
    second = Lowering(ProgramStore(tmp_path))
    with second.ahead(programs, _KEYS) as ordered:
        assert ordered == _KEYS  # nothing is missing, so nobody is asked
        assert [second.lower(programs, key).as_text() for key in ordered] == [
            lowered[key].as_text() for key in _KEYS
        ]
    assert (second.num_traced, second.num_read) == (0, 4)


@pytest.mark.slow
def test_workers_can_be_started_before_it_is_known_what_they_trace(tmp_path, workers_everywhere):
    programs, first = _programs(), Lowering(ProgramStore(tmp_path))
    first.prepare(programs)
    assert first._workers is None  # nothing was missing yet
    first.lower(programs, _KEYS[1])
    first.prepare(programs)
    prepared = list(first._workers._processes)
    assert len(prepared) == 2
    with first.ahead(programs, _KEYS) as ordered:
        for key in ordered:
            first.lower(programs, key)
        assert first._workers._processes[:2] == prepared
    assert (first.num_traced, first.num_read) == (1, 4)  # the sampler was lowered twice
    assert all(process.returncode is not None for process in prepared)
    first.close()


def test_workers_that_fail_leave_the_tracing_to_this_process(
    tmp_path, workers_everywhere, monkeypatch
):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    programs, mine = _programs(), Lowering(ProgramStore(tmp_path))
    with mine.ahead(programs, _KEYS) as ordered:
        for key in ordered:
            assert isinstance(mine.lower(programs, key), jax.stages.Lowered)
    assert (mine.num_traced, mine.num_read) == (4, 0)


def test_nothing_is_handed_over_without_slow_kernels(tmp_path, monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("a worker was started")

    monkeypatch.setattr("subprocess.Popen", refuse)
    with Lowering(ProgramStore(tmp_path)).ahead(_programs(), _KEYS) as ordered:
        assert ordered == _KEYS
    with Lowering(None).ahead(_programs(), _KEYS) as ordered:
        assert ordered == _KEYS
