"""The highest speeds of a device, from which an entry of `planning.devices.MEASURED` is made."""

import json

from jaxinfer.measure import ceilings
from scripts.kernels.ceilings import main


def test_the_command_prints_the_best_of_all_that_it_tried(monkeypatch, capsys):
    for name, value in {"_CPU_BYTES": 1 << 16, "_LEAST_BYTES": 1 << 15, "_CPU_ROWS": 16}.items():
        monkeypatch.setattr(ceilings, name, value)
    monkeypatch.setattr(ceilings, "_WINDOW_S", 0.0)
    assert main() == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["device"], found["data_sheet"]) == ("cpu", None)
    for name, tried in found["calculations"].items():
        assert found[name] == max(tried.values())
    assert [len(tried) for tried in found["calculations"].values()] == [10, 2, 2]
