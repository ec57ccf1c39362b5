"""Before the first request, every program has run and no request notices."""

import dataclasses

import pytest

from jaxinfer.serving.programs.kinds.copy_blocks import CopyBlocksKey
from jaxinfer.serving.programs.kinds.sampled_decode import SampledDecodeKey
from jaxinfer.serving.programs.kinds.sampler import SamplerKey
from jaxinfer.serving.programs.layout import DecodeShape, PrefillShape
from jaxinfer.serving.programs.program_set import all_programs
from jaxinfer.serving.runner.ahead_of_time import run_warm
from tests.serving.runner.tiny_runner import (
    GREEDY,
    Loop,
    expected_greedy,
    make_runner,
)


@pytest.mark.slow
def test_every_step_sampler_and_copy_runs_and_answers_stay_the_same():
    runner = make_runner()
    ran = []
    compiled = runner._plan.compiled

    class Recorder:
        def __getitem__(self, key):
            ran.append(key)
            return compiled[key]

    keys = all_programs(runner._buckets, swaps=True)
    plan = dataclasses.replace(runner._plan, compiled=Recorder())
    run_warm(plan, runner._config, runner.launcher, keys, "a CPU")
    kinds = PrefillShape | DecodeShape | SampledDecodeKey | SamplerKey | CopyBlocksKey
    assert set(ran) == {key for key in keys if isinstance(key, kinds)}
    assert min(ran.count(key) for key in ran) == 3  # no step here is long
    loop = Loop(runner)
    loop.add([5, 6, 7])
    assert loop.run() == [expected_greedy([5, 6, 7], GREEDY["max_tokens"])]
