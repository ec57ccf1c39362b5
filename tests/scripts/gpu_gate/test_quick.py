"""The quick check judges starts by what they found on disk and compares what all parts write."""

import dataclasses
import json
import subprocess

import pytest

from jaxinfer.startup_report import StartUpTimes
from scripts.gpu_gate import children, quick
from scripts.gpu_gate.kernels import checks
from scripts.gpu_gate.kernels.trial import TRIED
from scripts.gpu_gate.processes import TIMED_OUT
from scripts.gpu_gate.rows import Row

TOKENS = [5, 6]


def start(*, traced=4, hits=0, later=0, tokens=TOKENS):
    return {
        "engine_s": 36.7,
        "num_programs": 78,
        "compiled_later": later,
        "cache_hits": hits,
        "start_up": dataclasses.asdict(StartUpTimes(0.0, 1.0, 2.0, 0.0, 1.0, 9.0, traced, 72)),
        "attention_backend": "mosaic",
        "token_ids": tokens,
    }


COLD, WARM = start(), start(traced=0, hits=80)


def test_sound_starts_are_good():
    row = quick.start_row("bundled", "cold", COLD, COLD)
    assert row.good
    assert row.what == "36.7 s, 78 programs, 0 from the cache, 4 traced here, mosaic attention"
    assert quick.start_row("bundled", "warm", WARM, COLD).good


@pytest.mark.parametrize(
    ("kind", "found", "fault"),
    [
        ("cold", start(hits=3), "3 programs were in the cache of a cold start"),
        ("warm", start(traced=2, hits=78), "a warm start traced 2 programs"),
        ("warm", start(traced=0, hits=77), "a warm start found 77 of 78 programs"),
        ("cold", start(later=1), "1 programs were compiled after the start"),
        ("warm", start(traced=0, hits=78, tokens=[5, 7]), "its greedy tokens are not the cold"),
    ],
)
def test_a_start_that_is_not_what_it_claims_is_bad(kind, found, fault):
    row = quick.start_row("bundled", kind, found, COLD)
    assert not row.good
    assert fault in row.what


SPINNING = {
    "spinning kernel": "error: kernel decode did not answer within 10 s (1 x 9 keys); the process",
    "spinning start": "error: cuda:0 (H200) did not answer within 5 s (DecodeShape(rows=2)); the",
}


@pytest.fixture
def machine(monkeypatch):
    """Puts a machine in the place of the GPU's."""

    def be(**replies):
        it = Machine(**replies)
        monkeypatch.setattr(quick, "run", it.run)
        monkeypatch.setattr(children, "run", it.run)
        return it

    return be


class Machine:
    """Answers each child as a sound GPU would; `replies` win."""

    def __init__(self, **replies):
        self.replies, self.parts, self.caches = replies, [], set()

    def run(self, command, *, limit_s, settings=None):
        if "jaxinfer.generate" in command:
            part, said = "generate", {"token_ids": TOKENS}
        else:
            task = json.loads(command[-1])
            part, cache = task["part"], task.get("arguments", {}).get("compilation_cache_dir")
            said = {"row": [part, "fine", True], "rows": [[part, "fine", True]]}
            if part == "start":
                said = WARM if cache in self.caches else COLD
            if task.get("spins"):
                part = f"spinning {part}"
            else:
                self.caches.add(cache)
        self.parts.append(part)
        status, said = self.replies.get(part, (0, said))
        last = "last words" if part in self.replies else SPINNING.get(part, "last words")
        status = 1 if part in SPINNING and part not in self.replies else status
        return subprocess.CompletedProcess(command, status, json.dumps(said), last)


@pytest.mark.parametrize(("num_devices", "parts"), [(1, 6), (2, 7)])
def test_all_parts_run_and_starts_are_kept(machine, num_devices, parts):
    machine = machine()
    found = quick.run_quick(num_devices)
    assert all(row.good for row in found.rows)
    assert len(machine.parts) == parts
    assert ("devices" in machine.parts) == (num_devices > 1)
    kinds = [f"{name} {kind}" for name in ("0.6b", "bundled") for kind in ("cold", "warm")]
    assert [*found.starts] == kinds


def test_a_command_that_writes_other_tokens_than_the_engine_is_bad(machine):
    machine(generate=(0, {"token_ids": [1]}))
    bad = [row for row in quick.run_quick(1).rows if not row.good]
    assert [row.name for row in bad] == ["generate"]


def test_a_part_that_hangs_is_one_bad_row(machine):
    machine(behaviours=(TIMED_OUT, None))
    (bad,) = [row for row in quick.run_quick(1).rows if not row.good]
    assert (bad.name, bad.what) == ("behaviours", "did not end within 75 s")


def test_starts_that_die_leave_the_other_parts_their_rows(machine):
    machine(start=(-11, None))
    found = quick.run_quick(1)
    bad = [row for row in found.rows if not row.good]
    names = ["0.6b cold", "0.6b warm", "bundled cold", "bundled warm", "generate"]
    assert [row.name for row in bad] == names
    assert bad[0].what == "ended with -11: last words"
    assert found.starts == {}


@pytest.mark.parametrize(
    ("part", "reply"),
    [
        ("spinning kernel", (0, {"row": ["decode", "fine", True]})),  # not noticed
        ("spinning start", (0, COLD)),
        ("spinning start", (TIMED_OUT, None)),  # noticed by nobody but this check
        ("spinning start", (1, None)),  # of another cause
    ],
)
def test_a_fault_that_is_not_named_is_a_bad_row(machine, part, reply):
    machine(**{part: reply})
    (bad,) = [row for row in checks.check_kernels() if not row.good]
    assert bad.name == part


def test_each_kernel_is_tried_alone_and_named_if_it_stands_still(machine):
    tried = machine()
    rows = checks.check_kernels()
    assert all(row.good for row in rows)
    kernels = len(TRIED)
    assert sorted(tried.parts) == ["kernel"] * kernels + ["spinning kernel", "spinning start"]
    assert not checks.stand_still(rows)
    last = "error: kernel small did not answer within 10 s (1 row)"
    assert checks.stand_still([*rows, Row("kernel small", f"ended with 1: {last}", False)])
    assert checks.stand_still([Row("kernel small", "did not end within 90 s", False)])
    assert not checks.stand_still([Row("spinning kernel", f"ended with 1: {last}", False)])
    machine(kernel=(1, None))
    bad = [row.name for row in checks.check_kernels() if not row.good]
    assert bad == [f"kernel {op}" for op in TRIED]
