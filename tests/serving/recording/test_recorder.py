"""An engine records the steps that a schedule names, and reports on a real trace."""

import json

import pytest

from jaxinfer import ProfileReport, ProfileSchedule, SamplingParams
from jaxinfer.profiling.files import RECORDING, REPORT_TEXT, cycle_directory
from jaxinfer.profiling.parts import HOST_SPANS
from jaxinfer.profiling.trace.xplane import find_trace, read_trace
from jaxinfer.serving.recording.recorder import step_facts
from jaxinfer.serving.scheduler.schedule import Schedule
from tests.serving.small_llm import PROMPTS, small_llm


@pytest.fixture(scope="module")
def engine():
    with small_llm(num_decode_steps=1, enable_prefix_caching=False) as llm:
        llm.generate(_prompts(), _params(4), use_tqdm=False)
        yield llm


def _prompts():
    return [{"prompt_token_ids": ids} for ids in PROMPTS]


def _params(tokens):
    return SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False)


def _run(llm, tokens=8, **options):
    return llm.generate(_prompts(), _params(tokens), use_tqdm=False, **options)


def _recorded(directory):
    return json.loads((directory / RECORDING).read_text())


def test_generate_records_its_first_five_steps(engine, tmp_path):
    plain = _run(engine)
    profiled = _run(engine, profile=tmp_path)
    assert [o.outputs[0].token_ids for o in profiled] == [o.outputs[0].token_ids for o in plain]
    (steps,) = _recorded(tmp_path)["cycles"]
    assert [step["kind"] for step in steps] == ["prefill"] + ["decode"] * 4
    prompt_tokens = sum(map(len, PROMPTS))
    assert (steps[0]["rows"], steps[0]["tokens"]) == (len(PROMPTS), prompt_tokens)
    assert steps[1]["context_tokens"] == prompt_tokens + len(PROMPTS)


def test_the_report_has_parts_kernels_and_the_host(engine, tmp_path):
    _run(engine, profile=tmp_path)
    report = ProfileReport.read(tmp_path)
    assert [(row.kind, row.steps) for row in report.steps] == [("prefill", 1), ("decode", 4)]
    decode = {row.part for row in report.parts if row.kind == "decode"}
    assert {"qkv", "attention", "o", "mlp", "head", "sample"} <= decode
    assert [(each.kind, each.run) for each in report.timings] == [
        ("prefill", "recorded"),
        ("decode", "recorded"),
    ]
    for timing in report.timings:
        assert set(timing.host) == set(HOST_SPANS)
        assert all(seconds > 0 for seconds in timing.host.values())
    # The host waits for the device.
    assert report.timings[0].seconds >= report.steps[0].span_s
    assert "decode, by part" in (tmp_path / REPORT_TEXT).read_text()


def test_host_and_device_are_recorded_by_one_clock(engine, tmp_path):
    _run(engine, profile=tmp_path)
    trace = read_trace(find_trace(cycle_directory(tmp_path, 0)))
    launches = [span for span in trace.spans if span.name == "launch"]
    fetches = [span for span in trace.spans if span.name == "fetch"]
    runs = {(event.module, event.run) for event in trace.kernels if event.run}
    forward = [run for run in runs if run[0].startswith(("jit_prefill", "jit_sampled_decode"))]
    assert len(launches) == len(fetches) == len(forward) == 5
    # No kernel of a step begins before its launch does, or ends after its tokens were read.
    events = [
        [event for event in trace.kernels if (event.module, event.run) == run] for run in forward
    ]
    events.sort(key=lambda own: own[0].start_ns)
    for launch, fetch, own in zip(launches, fetches, events, strict=True):
        assert launch.start_ns <= min(event.start_ns for event in own)
        assert max(event.end_ns for event in own) <= fetch.start_ns + fetch.duration_ns


def test_a_trace_is_kept_small_and_has_a_form_for_perfetto(engine, tmp_path):
    _run(engine, profile=tmp_path)
    assert sum(file.stat().st_size for file in tmp_path.rglob("*") if file.is_file()) < 2e6
    assert list(tmp_path.rglob("*.trace.json.gz"))


def test_steps_to_wait_for_and_to_drop_are_left_out(engine, tmp_path):
    schedule = ProfileSchedule(wait=1, warmup=1, active=2, repeat=2)
    with engine.profile(tmp_path, schedule):
        _run(engine, tokens=10)
    first, second = _recorded(tmp_path)["cycles"]
    assert [step["kind"] for step in (*first, *second)] == ["decode"] * 4
    # Of 10 steps, the third and the fourth, and again the seventh and the eighth.
    rows, start = len(PROMPTS), sum(map(len, PROMPTS))
    contexts = [step["context_tokens"] for step in (*first, *second)]
    assert contexts == [start + rows * step for step in (2, 3, 6, 7)]
    assert not (tmp_path / "warmup").exists()


def test_stopping_early_keeps_the_steps_so_far(engine, tmp_path):
    engine.start_profile(tmp_path, ProfileSchedule(active=50))
    _run(engine, tokens=3)
    report = engine.stop_profile()
    assert report is not None
    assert sum(row.steps for row in report.steps) == 3


def test_an_engine_that_was_recorded_goes_on_untold(engine, tmp_path):
    _run(engine, profile=tmp_path)
    one = engine._loaded.replicas[0]
    assert one.engine.loop._observer is None
    assert one.runner.launched is None


def test_a_second_profile_and_a_stop_without_a_start_are_one_line(engine, tmp_path):
    engine.start_profile(tmp_path, ProfileSchedule())
    with pytest.raises(RuntimeError, match=r"being recorded to .*; call stop_profile\(\) first"):
        engine.start_profile(tmp_path, ProfileSchedule())
    with pytest.raises(ValueError, match=r"no step was recorded in .*: fewer steps ran than"):
        engine.stop_profile()
    with pytest.raises(RuntimeError, match="no profile is being recorded"):
        engine.stop_profile()


def test_too_few_steps_for_a_schedule_are_one_line(engine, tmp_path):
    with (
        pytest.raises(ValueError, match="no step was recorded"),
        engine.profile(tmp_path, ProfileSchedule(wait=30)),
    ):
        _run(engine, tokens=2)


def test_an_unwritable_directory_runs_nothing(engine, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"^can't write a profile to .*/file/below"):
        _run(engine, profile=tmp_path / "file" / "below")


def test_an_error_in_the_block_is_the_one_that_is_told(engine, tmp_path):
    with pytest.raises(KeyError, match="own"), engine.profile(tmp_path):
        raise KeyError("own")
    with pytest.raises(RuntimeError, match="no profile is being recorded"):
        engine.stop_profile()


def test_a_trace_that_another_has_begun_fails_the_profile_and_no_request(engine, tmp_path):
    with small_llm() as other:
        other.start_profile(tmp_path / "other")
        with pytest.raises(RuntimeError, match="could not be recorded: no profile can be recorded"):
            _run(engine, profile=tmp_path / "own")
        assert len(_run(engine, tokens=2)) == len(PROMPTS)


def test_a_schedule_counts_the_steps_of_one_engine(tmp_path):
    with (
        small_llm(data_parallel_size=2) as llm,
        pytest.raises(ValueError, match="of one engine, not of 2 replicas: profile with"),
    ):
        llm.start_profile(tmp_path, ProfileSchedule())


def test_closing_an_engine_ends_its_recording_and_keeps_its_steps(tmp_path):
    with small_llm(num_decode_steps=1) as llm:
        llm.start_profile(tmp_path, ProfileSchedule(active=50))
        _run(llm, tokens=3)
    assert len(_recorded(tmp_path)["cycles"][0]) == 3
    assert list(tmp_path.rglob("*.xplane.pb"))


def test_drafts_are_among_the_tokens_of_a_step_that_was_read():
    schedule = Schedule([], is_decode=True, num_steps=4, num_tokens=3, fed=(8, 6))
    facts = step_facts(schedule, ())
    assert (facts.tokens, facts.num_steps) == (7, 2)
    assert step_facts(Schedule([], is_decode=True, num_tokens=3), ()).tokens == 3  # not read
