"""gpu_check finds the GPU tests, counts what they report, and fails where there is no GPU."""

import sys

import pytest

from scripts import gpu_check
from scripts.gpu_check import ROOT, Row

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
    assert gpu_check.module_rows("a", report, 1) == [
        Row("a", what, False),
        Row("  one", "KL 0.1", True),
    ]


def test_a_process_that_saw_no_gpu_is_bad(tmp_path):
    report = tmp_path / "report.xml"
    report.write_text(REPORT.replace("<failure/>", "").replace("jax-triton", "needs an NVIDIA GPU"))
    assert not gpu_check.module_rows("a", report, 0)[0].good


@pytest.mark.parametrize(("status", "what"), [(124, "timed out"), (-11, "ended with -11")])
def test_a_module_that_dies_is_bad(tmp_path, status, what):
    assert gpu_check.module_rows("a", tmp_path / "none.xml", status) == [Row("a", what, False)]


def test_only_modules_with_gpu_tests_are_run():
    names = {module.name for module in gpu_check.gpu_modules([ROOT / "tests"])}
    assert {"test_mosaic_gpu.py", "test_exactness.py", "test_triton.py"} <= names
    assert not {"test_scheduler.py", "test_gpu_check.py"} & names


def test_no_gpu_tests_at_all_is_bad():
    assert gpu_check.run_tests([]) == [Row("tests", "no GPU-marked tests found", False)]


@pytest.mark.slow
def test_modules_run_in_processes_of_their_own_and_failures_are_shown(tmp_path, capfd):
    good, bad, dies = (tmp_path / f"test_{name}.py" for name in ("good", "bad", "dies"))
    marked = "import pytest\npytestmark = pytest.mark.gpu\ndef test():\n    "
    good.write_text(marked + "pass\n")
    bad.write_text(marked + "assert 'what went' == 'wrong'\n")
    dies.write_text(marked + "import os; os._exit(3)\n")
    rows = gpu_check.run_tests(gpu_check.gpu_modules([good, bad, dies]))
    assert [(row.name, row.good) for row in rows] == [
        ("test_good", True),
        ("test_bad", False),
        ("test_dies", False),
    ]
    assert rows[2].what == "ended with 3"
    assert "== test_bad" in (said := capfd.readouterr().out)
    assert "'what went' == 'wrong'" in said


def test_a_benchmark_that_compiled_while_it_measured_is_bad_and_says_so():
    speed = {
        "rows": 64,
        "prompt_tokens": 512,
        "prefill_tokens_per_s": 450_000.0,
        "prefill_of_floor": 0.5,
        "decode_step_s": 0.003,
        "decode_of_floor": None,
        "num_compilations": 0,
    }
    what = "prefill 450,000 tok/s (50% of the floor), decode 3.000 ms/step"
    assert gpu_check.bench_row(speed) == Row("bench 64 x 512", what, True)
    what += "; no steady state: 3 programs were compiled while it was measured"
    assert gpu_check.bench_row(speed | {"num_compilations": 3}) == Row(
        "bench 64 x 512", what, False
    )


def test_what_takes_too_long_is_ended():
    done = gpu_check._run([sys.executable, "-c", "import time; time.sleep(60)"], limit_s=0.2)
    assert done.returncode == 124


def test_the_table_marks_what_is_bad(capsys):
    gpu_check.print_table([Row("tests", "all", True), Row("bench 2 x 512", "timed out", False)])
    assert capsys.readouterr().out.splitlines()[1:] == [
        "ok   tests          all",
        "BAD  bench 2 x 512  timed out",
    ]


@pytest.mark.slow
def test_without_a_gpu_it_fails_in_one_line(capsys, monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert gpu_check.main([]) == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err == "gpu_check: error: JAX finds no GPU; `jaxinfer env` says more\n"
