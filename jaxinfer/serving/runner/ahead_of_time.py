"""Compiles an engine's programs before its first request, and runs them warm."""

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterable

from jaxinfer.config import EngineConfig
from jaxinfer.serving.compile.warm_up import warm_up
from jaxinfer.serving.programs.kinds.kind import ProgramKey
from jaxinfer.serving.programs.program_set import all_programs
from jaxinfer.serving.runner.engine_plan import EnginePlan
from jaxinfer.serving.runner.step_launcher import StepLauncher
from jaxinfer.serving.runner.watchdog import Watchdog


def compile_ahead(
    plan: EnginePlan,
    config: EngineConfig,
    launcher: StepLauncher,
    *,
    swaps: bool,
    when_compiled: Callable[[], None],
    device_name: str,
) -> None:
    """Compile every program there is; one accelerator then runs each on padding.

    Where executables of all were on disk, each runs while others are still read.

    Args:
        swaps: whether blocks move to host memory.
        when_compiled: allocates these arrays, once XLA needs no more memory.
    """
    keys = all_programs(plan.buckets, swaps=swaps)
    # XLA keeps scratch memory for every all-reduce of every program that has run, 0.4 GB a program
    # of 36 layers: on several devices only what requests need runs.
    warms_up = is_one_accelerator(plan)
    lowering, num_lowered = plan.lowering, plan.lowering.num_lowered
    in_order = functools.partial(lowering.as_ready, plan.programs)
    each = plan.compiled.compile_each(keys, show_progress=config.show_progress, in_order=in_order)
    with contextlib.closing(each):
        with contextlib.closing(lowering):
            ready = [next(each)]  # all have begun
            if lowering.num_lowered > num_lowered or not warms_up:
                ready.extend(each)
        when_compiled()
        if warms_up:
            run_warm(plan, config, launcher, itertools.chain(ready, each), device_name)


def is_one_accelerator(plan: EnginePlan) -> bool:
    """Whether programs run before the first request."""
    return plan.platform != "cpu" and plan.programs.context.mesh.devices.size == 1


def run_warm(
    plan: EnginePlan,
    config: EngineConfig,
    launcher: StepLauncher,
    keys: Iterable[ProgramKey],
    device_name: str,
) -> None:
    """Run compiled programs on padding, each within the time that a start may take."""
    limit_s = config.start_time_limit(plan.platform)
    with contextlib.closing(Watchdog(limit_s, device_name)) as watchdog:
        launcher.resident = warm_up(
            plan.programs,
            keys,
            lambda key, *arguments: plan.compiled[key](*arguments),
            launcher.resident,
            watching=watchdog.watching,
        )
