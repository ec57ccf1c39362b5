"""Copies between host and device memory are timed with their bytes checked."""

import json
import sys

import numpy as np
import pytest

from scripts.measurements import host_copies


def test_every_way_is_timed_by_size_and_number(monkeypatch, capsys, tmp_path):
    flags = ["--mib", "1,2", "--arrays", "1,3", "--repeats", "2"]
    monkeypatch.setattr(sys, "argv", ["host_copies", *flags, "--output-directory", f"{tmp_path}"])
    assert host_copies.main() == 0
    (file,) = tmp_path.glob("*host-copies.json")
    found = json.loads(file.read_text())["copies"]
    sizes = [(each["mib"], each["arrays"]) for each in found]
    assert sizes == [(1, 1), (1, 3), (2, 1), (2, 3)]
    for each in found:
        assert len(each["bytes_per_s"]) == 7
        assert all(rate > 0 for rate in each["bytes_per_s"].values())
    assert "out, to pinned memory, GB/s" in capsys.readouterr().out


def test_other_bytes_are_an_error(monkeypatch):
    def wrong(num_bytes, count):
        yield "first", lambda: [np.zeros(num_bytes, np.uint8)]
        yield "second", lambda: [np.ones(num_bytes, np.uint8)]

    monkeypatch.setattr(host_copies, "copies", wrong)
    with pytest.raises(RuntimeError, match="second: the copies are not what was copied"):
        host_copies.measure(4, 1, 1)
