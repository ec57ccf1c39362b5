"""Steps are timed by the host's clock without a trace."""

import time

import pytest

from jaxinfer import SamplingParams
from jaxinfer.profiling.parts import HOST_SPANS
from tests.serving.small_llm import PROMPTS, small_llm


@pytest.fixture(scope="module")
def engine():
    with small_llm(num_decode_steps=1, enable_prefix_caching=False) as llm:
        _run(llm)
        yield llm


def _run(llm):
    params = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True, detokenize=False)
    prompts = [{"prompt_token_ids": ids} for ids in PROMPTS]
    return [out.outputs[0].token_ids for out in llm.generate(prompts, params, use_tqdm=False)]


def test_every_step_of_a_block_has_its_kind_its_time_and_the_hosts_work(engine):
    before = time.perf_counter()
    with engine.time_steps() as steps:
        _run(engine)
    wall = time.perf_counter() - before
    assert [step.kind for step in steps] == ["prefill", "decode", "decode", "decode"]
    for step in steps:
        assert set(step.parts) == set(HOST_SPANS)
        assert all(seconds > 0 for seconds in step.parts.values())
    assert 0 < sum(step.seconds for step in steps) < wall


def test_a_slow_launch_and_a_slow_read_count_for_their_step(engine, monkeypatch):
    runner = engine._loaded.replicas[0].runner
    launch, fetch = runner.launch, runner.fetch
    monkeypatch.setattr(runner, "launch", lambda step: (time.sleep(0.05), launch(step))[1])
    monkeypatch.setattr(runner, "fetch", lambda step: (time.sleep(0.03), fetch(step))[1])
    with engine.time_steps() as steps:
        _run(engine)
    prefill, *decodes = steps
    assert prefill.seconds >= 0.13  # two launches, of which one is the next step's, and its read
    assert all(step.parts["launch"] >= 0.05 and step.parts["fetch"] >= 0.03 for step in steps)
    assert all(step.seconds >= 0.08 for step in decodes[:-1])


def test_steps_compute_the_same_and_nothing_is_left_behind(engine):
    plain = _run(engine)
    with engine.time_steps():
        assert _run(engine) == plain
    one = engine._loaded.replicas[0]
    assert one.engine.loop._observer is None
    assert _run(engine) == plain


def test_one_recording_at_a_time(engine, tmp_path):
    with engine.time_steps():
        with pytest.raises(RuntimeError, match=r"leave its time_steps\(\) block first"):
            engine.start_profile(tmp_path)
        with pytest.raises(RuntimeError, match="the steps' time is being recorded"):
            engine.time_steps().__enter__()
