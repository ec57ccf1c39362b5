"""GPU tests are found, run in processes of their own, and counted from what they report."""

import subprocess
from pathlib import Path

import pytest

from scripts.gpu_gate import modules
from scripts.gpu_gate.processes import ROOT
from scripts.gpu_gate.rows import Row

DIED = subprocess.CompletedProcess([], 1, "", "")
REPORT = """<testsuites><testsuite>
<testcase classname="tests.a" name="one" time="1.5">
<properties><property name="closeness" value="KL 0.1"/></properties></testcase>
<testcase classname="tests.a" name="two" time="0.5"><failure/></testcase>
<testcase classname="tests.a" name="three" time="0"><skipped message="no jax-triton"/></testcase>
</testsuite></testsuites>"""


def test_a_module_is_counted_from_its_report(tmp_path):
    report = tmp_path / "report.xml"
    report.write_text(REPORT)
    what = "1 passed, 1 failed, 1 skipped, 2 s (no jax-triton)"
    assert modules.module_rows("a", report, 1, 2.4) == [
        Row("a", what, False),
        Row("  one", "KL 0.1", True),
    ]


def test_a_process_that_saw_no_gpu_is_bad(tmp_path):
    report = tmp_path / "report.xml"
    report.write_text(REPORT.replace("<failure/>", "").replace("jax-triton", "needs an NVIDIA GPU"))
    assert not modules.module_rows("a", report, 0, 1.0)[0].good


@pytest.mark.parametrize(
    ("status", "what"), [(124, "timed out after 9 s"), (-11, "ended with -11 after 9 s")]
)
def test_a_module_that_dies_is_bad(tmp_path, status, what):
    rows = modules.module_rows("a", tmp_path / "none.xml", status, 9.0)
    assert rows == [Row("a", what, False)]


def test_only_modules_with_gpu_tests_are_run():
    names = {module.name for module in modules.gpu_modules([ROOT / "tests"])}
    assert {"test_mosaic_gpu.py", "test_exactness.py", "test_triton.py"} <= names
    assert not {"test_scheduler.py", "test_modules.py"} & names


def test_no_gpu_tests_at_all_is_bad():
    assert modules.run_modules([], 1.0) == [Row("tests", "no GPU-marked tests found", False)]


@pytest.mark.slow
def test_modules_run_in_processes_of_their_own_and_failures_are_shown(tmp_path, capfd):
    good, bad, dies = (tmp_path / f"test_{name}.py" for name in ("good", "bad", "dies"))
    marked = "import pytest\npytestmark = pytest.mark.gpu\ndef test():\n    "
    good.write_text(marked + "pass\n")
    bad.write_text(marked + "assert 'what went' == 'wrong'\n")
    dies.write_text(marked + "import os; os._exit(3)\n")
    rows = modules.run_modules(modules.gpu_modules([good, bad, dies]), 60.0)
    assert [(row.name, row.good) for row in rows] == [
        ("test_good", True),
        ("test_bad", False),
        ("test_dies", False),
    ]
    assert rows[2].what.startswith("ended with 3 after")
    assert "== test_bad" in (said := capfd.readouterr().out)
    assert "'what went' == 'wrong'" in said


def test_the_longest_modules_come_first_and_each_has_its_seconds():
    found = modules.gpu_modules([ROOT / "tests"])
    assert modules.SECONDS.keys() <= {module.stem for module in found}
    seconds = [modules._expected_s(module) for module in found]
    assert seconds == sorted(seconds, reverse=True)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_shards_hold_every_module_once_and_take_as_long_as_each_other(count):
    found = modules.gpu_modules([ROOT / "tests"])
    shards = [modules.shard(found, i, count) for i in range(1, count + 1)]
    assert sorted(module for part in shards for module in part) == sorted(found)
    lengths = [sum(map(modules._expected_s, part)) for part in shards]
    assert max(lengths) <= 1.3 * min(lengths)


def test_modules_share_a_cache_of_their_own(monkeypatch, tmp_path):
    seen = []
    monkeypatch.setattr(modules, "run", lambda command, **options: seen.append(options) or DIED)
    for name in ("test_a", "test_closeness_as_served"):
        modules.run_module(Path(name), tmp_path, 0.0)
    caches = {options["settings"]["XDG_CACHE_HOME"] for options in seen}
    assert caches == {str(tmp_path / "cache")}
    # What is served is compiled as it is served.
    assert ["XLA_FLAGS" in options["settings"] for options in seen] == [True, False]
