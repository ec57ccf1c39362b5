"""A memory recording is written as text and JSON."""

import contextlib
import json

from jaxinfer.cli.profiling.memory_files import record_memory_of
from tests.profiling.memory.examples import recording


class _LLM:
    def __init__(self, recorded):
        self.recorded = recorded
        self.calls = []

    @contextlib.contextmanager
    def record_memory(self):
        self.calls.append("begin")
        yield self.recorded
        self.calls.append("end")


def test_what_ran_is_recorded_and_written(tmp_path):
    llm = _LLM(recording(5))
    files = record_memory_of(llm, lambda: llm.calls.append("run"), tmp_path / "new")
    assert llm.calls == ["begin", "run", "end"]
    assert [file.name for file in files] == ["memory.txt", "memory.json"]
    assert "Peak while recorded" in files[0].read_text()
    assert len(json.loads(files[1].read_text())["samples"]) == 5
