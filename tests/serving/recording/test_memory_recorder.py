"""An engine says what holds its memory, and records that of every step."""

import pytest

from jaxinfer import SamplingParams
from tests.serving.small_llm import GREEDY, PROMPTS, small_llm


@pytest.fixture(scope="module")
def llm():
    with small_llm() as llm:
        yield llm


def test_a_report_has_weights_then_the_cache(llm):
    report = llm.memory_report()
    assert [phase.name for phase in report.phases] == [
        *("weights loaded", "KV cache allocated", "generating")
    ]
    loaded, allocated, now = report.phases
    assert loaded.num_bytes == loaded.bytes_of("weights") == llm.report.weight_bytes
    assert allocated.bytes_of("KV cache") == llm.kv_bytes
    assert allocated.bytes_of("slots") > 0
    assert now.num_bytes >= allocated.num_bytes
    assert not report.is_measured


def test_a_recording_has_a_sample_of_every_step(llm):
    before = llm.memory_report()
    steps = _num_steps(llm)
    with llm.record_memory() as recording:
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
    with llm.record_memory() as recording:
        llm.generate([[1] * 30], SamplingParams(max_tokens=30, ignore_eos=True), use_tqdm=False)
    used = [sample.kv_used_bytes for sample in recording.samples]
    assert used[-1] > used[0]
    assert f"{max(used) / 1024:.2f} KiB" in str(recording)


def test_one_recording_at_a_time(llm, tmp_path):
    with llm.record_memory():
        with pytest.raises(RuntimeError, match="memory is being recorded; leave its record_memory"):
            llm.start_profile(tmp_path)
        with (
            pytest.raises(RuntimeError, match="memory can't be recorded now: memory is being"),
            llm.record_memory(),
        ):
            pass
    llm.start_profile(tmp_path)
    with (
        pytest.raises(RuntimeError, match=r"a profile is being recorded; call stop_profile\(\)"),
        llm.record_memory(),
    ):
        pass
    llm.stop_profile()
    with llm.record_memory():
        pass


def test_what_sleeps_holds_nothing(llm):
    llm.sleep()
    assert llm.memory_report().phases[-1].num_bytes == 0
    llm.wake_up()
    assert llm.memory_report().phases[-1].bytes_of("KV cache") == llm.kv_bytes


def test_an_error_in_the_block_ends_the_recording(llm):
    with pytest.raises(KeyError), llm.record_memory():
        raise KeyError
    with llm.record_memory():
        pass


def test_an_engine_may_close_while_it_records():
    with small_llm() as other, other.record_memory() as recording:
        other.close()
    assert recording.samples == []
    with pytest.raises(RuntimeError, match="closed"):
        other.memory_report()


def _num_steps(llm):
    counts = llm._loaded.engine.counts().steps
    return counts.prefill_steps + counts.decode_steps
