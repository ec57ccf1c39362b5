"""What holds the memory is recorded at every step."""

import json
import types

import pytest

from jaxinfer import SamplingParams
from scripts.measurements.memory_recording import in_use_bytes, record_memory
from tests.profiling.memory.examples import GIB
from tests.scripts.measurements.recorded_memory import recording
from tests.serving.small_llm import GREEDY, PROMPTS, small_llm


@pytest.fixture(scope="module")
def llm():
    with small_llm() as llm:
        yield llm


def test_a_recording_has_a_sample_of_every_step(llm):
    before = llm.memory_report()
    steps = _num_steps(llm)
    with record_memory(llm) as recording:
        llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    samples = recording.samples
    assert len(samples) == _num_steps(llm) - steps
    assert samples[0].tokens > samples[-1].tokens
    assert samples[0].program.startswith("PrefillShape(tokens=")
    assert all(s.step_bytes > 0 and s.kv_used_bytes > 0 for s in samples)
    assert [s.time_s for s in samples] == sorted(s.time_s for s in samples)
    assert recording.report.peak_bytes >= before.peak_bytes
    assert recording.report.phases[-1].bytes_of("step temporaries") >= samples[0].step_bytes
    # Nothing is sampled any more.
    llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    assert len(samples) == len(recording.samples)
    assert llm._loaded.replicas[0].runner.launched is None


def test_blocks_in_use_grow_with_the_sequence(llm):
    with record_memory(llm) as recording:
        llm.generate([[1] * 30], SamplingParams(max_tokens=30, ignore_eos=True), use_tqdm=False)
    used = [sample.kv_used_bytes for sample in recording.samples]
    assert used[-1] > used[0]
    assert f"{max(used) / 1024:.2f} KiB" in str(recording)


def test_one_recording_at_a_time(llm, tmp_path):
    with record_memory(llm):
        with pytest.raises(RuntimeError, match="memory is being recorded; leave its record_memory"):
            llm.start_profile(tmp_path)
        with (
            pytest.raises(RuntimeError, match="memory can't be recorded now: memory is being"),
            record_memory(llm),
        ):
            pass
    llm.start_profile(tmp_path)
    with (
        pytest.raises(RuntimeError, match=r"a profile is being recorded; call stop_profile\(\)"),
        record_memory(llm),
    ):
        pass
    llm.stop_profile()
    with record_memory(llm):
        pass


def test_an_error_in_the_block_ends_the_recording(llm):
    with pytest.raises(KeyError), record_memory(llm):
        raise KeyError
    with record_memory(llm):
        pass


def test_an_engine_may_close_while_it_records():
    with small_llm() as other, record_memory(other) as recording:
        other.close()
    assert recording.samples == []
    with pytest.raises(RuntimeError, match="closed"):
        other.memory_report()


def _num_steps(llm):
    counts = llm._loaded.engine.counts().steps
    return counts.prefill_steps + counts.decode_steps


def test_a_recording_says_which_steps_held_the_most():
    text = str(recording())
    assert "1,000 steps in 9.99 s" in text
    assert "at most 999.00 MiB, 1% of the cache, at 9.99 s with 8 sequences" in text
    assert "Largest step: 1.00 GiB, 8 tokens of 8 sequences, DecodeShape(rows=8)" in text
    assert "Peak while recorded: 117.00 GiB" in text
    assert "No step ran" in str(recording(0))


def test_json_has_phases_and_samples():
    values = json.loads(json.dumps(recording(2).to_dict(), allow_nan=False))
    assert values["report"]["peak_owner"] == "KV cache"
    assert values["report"]["phases"][-1]["num_bytes"] == 124 * GIB
    assert [sample["kv_used_bytes"] for sample in values["samples"]] == [0, 2**20]


def test_memory_in_use_is_that_of_the_fullest_device_that_tells():
    def device(stats):
        return types.SimpleNamespace(memory_stats=lambda: stats)

    devices = [device({"bytes_in_use": 5}), device({"bytes_in_use": 9}), device(None)]
    assert in_use_bytes(devices) == 9
    assert in_use_bytes(devices[2:]) is None
