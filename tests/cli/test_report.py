"""A report is printed as JSON for programs or as lines for people."""

import json

import pytest

from jaxinfer.cli.report import print_report


@pytest.mark.parametrize(("as_json", "shown"), [(True, None), (False, "speed: 3\ndone\n")])
def test_a_report_is_json_or_lines(as_json, shown, capsys):
    report = {"speed": 3}
    print_report(report, lambda values: [f"speed: {values['speed']}", "done"], as_json=as_json)
    out = capsys.readouterr().out
    assert json.loads(out) == report if as_json else out == shown
