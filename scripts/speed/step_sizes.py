"""Times the programs of an engine on padding: what each size costs, and what fewer would cost."""

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxinfer.serving.programs.buckets import Buckets
from jaxinfer.serving.programs.kinds.kind import ProgramKey
from jaxinfer.serving.programs.kinds.padding import uploaded
from jaxinfer.serving.programs.kinds.prompt_logprobs import PromptLogprobsKey
from jaxinfer.serving.programs.kinds.registry import step_kind_of
from jaxinfer.serving.programs.program_set import all_programs
from jaxinfer.serving.runner.runner import Runner
from scripts.speed.ladders import (
    LADDERS,
    Padding,
    num_programs,
    paddings,
    program_name,
    removable,
    step_name,
    without,
)

_REPEATS = 3
_WARM_UPS = 2
_MEASURED_S = 0.03  # of launches that are queued, at least
_FEWEST_LAUNCHES, _MOST_LAUNCHES = 2, 10
# JAX launches up to 32 programs ahead of the device. Before those that are timed it runs others
# which take so long that the host has launched all.
_BUSY_S, _MOST_BUSY = 0.05, 16

Launch = Callable[[], jax.Array]


class ProgramTimer:
    """Times an idle engine's programs on the device: a step's, on a batch of padding.

    A batch of padding has one token of one row. So these are the times of sizes, to which attention
    adds what the real rows' contexts take in any size.

    Args:
        runner: the engine's, which has no step in flight.
    """

    def __init__(self, runner: Runner) -> None:
        self._runner, self._plan = runner, runner._plan
        # On a CPU programs take more than their launches.
        self._busy = None if self._plan.platform == "cpu" else self._long_launch()
        self._num_busy = 1

    @property
    def keys(self) -> list[ProgramKey]:
        """The programs that steps consist of."""
        keys = all_programs(self._plan.buckets, swaps=False)
        return [key for key in keys if _is_of_a_step(key)]

    def seconds(self, key: ProgramKey) -> float:
        """The device's seconds for a run of a program: the median of a few windows."""
        launch, self._num_busy = self._launch(key), 1
        for _ in range(_WARM_UPS):
            launch().block_until_ready()
        one = self._window(launch, 1)
        count = min(max(int(_MEASURED_S / one), _FEWEST_LAUNCHES), _MOST_LAUNCHES)
        return statistics.median(self._window(launch, count) for _ in range(_REPEATS))

    def _window(self, launch: Launch, count: int) -> float:
        """Seconds of each of `count` runs that are queued while the device is busy.

        Raises:
            RuntimeError: the host can't launch as many before the device is idle.
        """
        while self._busy is not None:
            for _ in range(self._num_busy - 1):
                self._busy()
            before: Any = self._busy()  # whose stub lacks is_ready
            for _ in range(count - 1):
                launch()
            last = launch()
            if not before.is_ready():
                before.block_until_ready()
                return _seconds_until(last, time.perf_counter()) / count
            last.block_until_ready()
            if 2 * self._num_busy > _MOST_BUSY:
                raise RuntimeError("the host is too slow to launch programs ahead of the device")
            self._num_busy *= 2
        start = time.perf_counter()
        for _ in range(count - 1):
            launch()
        return _seconds_until(launch(), start) / count

    def _long_launch(self) -> Launch:
        """The launch of a prefill that takes long, or else of the one that takes longest."""
        launch: Launch | None = None
        for key in self._plan.buckets.prefill_shapes():
            if not key.all_tokens:
                launch = self._launch(key)
                launch().block_until_ready()
                if _seconds_until(launch(), time.perf_counter()) > _BUSY_S:
                    break
        assert launch is not None  # any engine has a prefill
        return launch

    def _launch(self, key: ProgramKey) -> Launch:
        """A function that launches a program, and returns one of its results."""
        self._plan.compiled.compile_now([key])
        call = self._plan.compiled[key]
        programs, launcher = self._plan.programs, self._runner.launcher
        if isinstance(key, PromptLogprobsKey):
            size, dtype = programs.context.config.hidden_size, programs.dtype
            residual, targets = uploaded(
                programs, (np.zeros((key.tokens, size), dtype), np.zeros(key.tokens, np.int32))
            )
            return lambda: call(launcher.resident.head, residual, targets)
        kind = step_kind_of(key)
        before, given = kind.padding(programs, key)

        def launch() -> jax.Array:
            launcher.resident, outputs = kind.run(key, call, launcher.resident, before, given)
            return outputs.newest

        return launch


def _is_of_a_step(key: ProgramKey) -> bool:
    try:
        step_kind_of(key)
    except TypeError:
        return isinstance(key, PromptLogprobsKey)
    return True


def _seconds_until(result: jax.Array, start: float) -> float:
    result.block_until_ready()
    return time.perf_counter() - start


def step_sizes(runner: Runner, ladders: Iterable[str] = tuple(LADDERS)) -> dict[str, Any]:
    """Time every program of an engine's steps, and say what it costs to have fewer.

    Args:
        runner: of an idle engine.
        ladders: names of `LADDERS` to be compared with the engine's own.

    Returns:
        JSON-like values: "num_programs", "programs" with each one's microseconds, and "without":
        for each size and for each ladder the number of programs saved, and the steps that are
        padded, the worst first, with their programs, microseconds and percent.
    """
    timer, buckets = ProgramTimer(runner), runner._plan.buckets
    us = {key: timer.seconds(key) * 1e6 for key in timer.keys}
    fewer = {str(size): [size] for size in removable(buckets)}
    fewer |= {f"ladder {name}": _present(buckets, name) for name in ladders}
    return {
        "num_programs": num_programs(buckets),
        "programs": {program_name(key): time for key, time in us.items()},
        "without": [
            {"sizes": name, **_cost(buckets, without(buckets, sizes), us)}
            for name, sizes in fewer.items()
        ],
    }


def _present(buckets: Buckets, ladder: str) -> Sequence[Any]:
    """The sizes that a ladder removes, as far as the engine has them and can do without."""
    can_go = {*removable(buckets)}
    return [size for size in LADDERS[ladder] if size in can_go]


def _cost(buckets: Buckets, fewer: Buckets, us: Mapping[ProgramKey, float]) -> dict[str, Any]:
    steps = [_step(padding, us) for padding in paddings(buckets, fewer)]
    return {
        "saved": num_programs(buckets) - num_programs(fewer),
        "steps": sorted(steps, key=lambda step: step["percent"], reverse=True),
    }


def _step(padding: Padding, us: Mapping[ProgramKey, float]) -> dict[str, Any]:
    before, after = (sum(us[key] for key in keys) for keys in (padding.before, padding.after))
    return {
        "before": step_name(padding.before),
        "after": step_name(padding.after),
        "before_us": before,
        "after_us": after,
        "percent": 100 * (after / before - 1),
    }


def step_size_lines(report: Mapping[str, Any]) -> list[str]:
    """The report for people: programs, then what each size saves and costs the steps it ran."""
    lines = [f"{'program':44}{'us':>10}"]
    lines += [f"{name:44}{us:10,.0f}" for name, us in report["programs"].items()]
    lines += ["", f"{report['num_programs']} programs; without"]
    for each in report["without"]:
        lines.append(f"{each['sizes']}: {each['saved']} fewer")
        lines += [
            f"  {step['percent']:+7.1f}% {step['before_us']:9,.0f} to {step['after_us']:9,.0f} us: "
            f"{step['before']} -> {step['after']}"
            for step in each["steps"]
        ]
    return lines
