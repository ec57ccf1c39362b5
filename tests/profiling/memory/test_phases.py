"""Phases say what is measured where a device tells, and what is counted where it does not."""

import pytest

from jaxinfer.profiling.memory.phases import HeldBytes, MemoryMark, memory_phases
from tests.profiling.memory.examples import GIB, HELD, MARKS, mark, report


def _gibibytes(phase):
    return {each.owner: (each.num_bytes / GIB, each.source) for each in phase.holdings}


def test_each_phase_has_what_was_there_at_its_fullest():
    loaded, compiled, allocated, generating = map(_gibibytes, report().phases)
    assert loaded == {"weights": (15, "arrays"), "outside": (1, "measured")}
    assert compiled == {
        "weights": (15, "arrays"),
        "compile scratch": (22 - 15, "measured"),
        "outside": (2, "measured"),
    }
    kept = {
        "weights": (15, "arrays"),
        "KV cache": (100, "arrays"),
        "slots": (1, "arrays"),
        "other": (117 - 116, "measured"),
        "outside": (3, "measured"),
    }
    assert allocated == kept
    assert generating == kept | {"step temporaries": (121 - 117, "measured")}


def test_the_compiler_speaks_where_the_allocators_peak_is_an_earlier_one():
    marks = [*MARKS[:-1], mark("generating", 117, 118)]
    (*_, generating) = map(_gibibytes, report(marks).phases)
    assert generating["step temporaries"] == (2, "compiler")


def test_a_device_that_tells_nothing_has_arrays_and_the_compiler():
    marks = [
        MemoryMark("weights loaded"),
        MemoryMark("programs compiled"),
        MemoryMark("generating"),
    ]
    loaded, compiled, generating = map(_gibibytes, memory_phases(marks, HELD, now=HELD))
    assert loaded == compiled == {"weights": (15, "arrays")}
    assert generating == {
        "weights": (15, "arrays"),
        "KV cache": (100, "arrays"),
        "slots": (1, "arrays"),
        "step temporaries": (2, "compiler"),
    }


def test_what_sleeps_holds_nothing_now():
    now = HeldBytes(weights=0, kv_cache=0, slots=0, step=None)
    phases = memory_phases([*MARKS[:-1], mark("generating", 5, 121)], HELD, now=now)
    assert phases[-2].bytes_of("KV cache") == 100 * GIB
    assert _gibibytes(phases[-1])["other"] == (5, "measured")
    assert phases[-1].bytes_of("KV cache") == 0


def test_the_peak_and_its_owner_are_named():
    peak = report()
    assert (peak.peak_phase.name, peak.peak_owner) == ("generating", "KV cache")
    assert peak.peak_bytes == pytest.approx((121 + 3) * GIB)
    early = report([MARKS[0], mark("programs compiled", 15, 130), *MARKS[2:]])
    assert (early.peak_phase.name, early.peak_owner) == ("programs compiled", "compile scratch")
