"""gpu_check counts what pytest reports, and fails where there is no GPU."""

import pytest

from scripts import gpu_check

REPORT = """<testsuites><testsuite>
<testcase classname="tests.kernels.test_a" name="one" time="1.5"/>
<testcase classname="tests.kernels.test_a" name="two" time="0.5"><failure/></testcase>
<testcase classname="tests.kernels.test_b" name="one" time="0"><skipped/></testcase>
</testsuite></testsuites>"""


def test_a_module_with_a_failure_is_bad(tmp_path):
    report = tmp_path / "report.xml"
    report.write_text(REPORT)
    assert gpu_check.module_rows(report) == [
        ("tests.kernels.test_a", "1 passed, 1 failed, 0 skipped, 2 s", False),
        ("tests.kernels.test_b", "0 passed, 0 failed, 1 skipped, 0 s", True),
    ]


def test_the_table_marks_what_is_bad(capsys):
    gpu_check.print_table([("tests", "all", True), ("bench 2 x 512", "timed out", False)])
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
