"""What a launch of one decode step costs the host, by parts that add up; needs an NVIDIA GPU.

python scripts/launch_cost.py --model-shape 0.6b --rows 1 64
"""

import argparse
import dataclasses
import statistics
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxinfer.cli.platform import start_platform
from jaxinfer.cli.process import OK, end_process, run_command
from jaxinfer.planning.named_shapes import SERVED_SHAPES
from scripts.measurements.driver_calls import DriverCall, DriverCalls

_PROMPT_LEN, _NUM_STEPS = 512, 200
_IS_UPDATE = "cuGraphExec"
_IS_LAUNCH = "cuGraphLaunch"


@dataclasses.dataclass(frozen=True)
class LaunchCost:
    """Microseconds of the median launch, of the thread that launches; its parts add up to it.

    Attributes:
        total: of the call of the compiled step.
        before: until the driver's first call: Python, arguments, holds on buffers.
        preparing: from there to the graph's launch, but for the driver's calls: XLA's work.
        updates: the driver's updates of the graph's nodes.
        graph_launch: the graph's launch itself.
        other_driver: all other calls of the driver.
        after: from the graph's launch to the end, but for the driver's calls: results, releases.
        driver_calls: how many calls of each function.
    """

    total: float
    before: float
    preparing: float
    updates: float
    graph_launch: float
    other_driver: float
    after: float
    driver_calls: dict[str, int]


def build_parser() -> argparse.ArgumentParser:
    """The flags of this script."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model-shape", choices=sorted(SERVED_SHAPES), default="0.6b")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--output-directory", type=Path, help="instead of benchmarks/results/")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print a table and write a record."""
    arguments = build_parser().parse_args(argv)
    return run_command("launch_cost", lambda: _run(arguments))


def _run(arguments: argparse.Namespace) -> int:
    start_platform()
    from scripts.measurements.results import RESULTS, save_result

    rows = {str(count): cost for count, cost in _costs(arguments.model_shape, arguments.rows)}
    kind = f"launch-cost-{arguments.model_shape}"
    path = save_result(kind, {"rows": rows}, arguments.output_directory or RESULTS)
    print(f"kept in {path}", flush=True)
    return OK


def _costs(shape: str, rows: Sequence[int]) -> Any:
    import jax

    from jaxinfer.measure.random_weights import build_engine

    arguments = {"num_decode_steps": 1, "compile_ahead": False, "show_progress": False}
    driver, thread = DriverCalls(), 0
    launches: dict[int, list[tuple[float, float]]] = defaultdict(list)
    call = jax.stages.Compiled.__call__

    def timed(self: Any, *given: Any) -> Any:
        nonlocal thread
        thread, start = threading.get_native_id(), time.perf_counter()
        result = call(self, *given)
        launches[id(self)].append((start, time.perf_counter()))
        return result

    with build_engine(shape, {"max_model_len": 1024, **arguments}) as llm:
        for count in rows:
            step_s = _generate(llm, count)  # also compiles
            step_s = _generate(llm, count)
            jax.stages.Compiled.__call__ = timed
            driver.start()
            _generate(llm, count)
            calls = [each for each in driver.stop() if each.thread == thread]
            jax.stages.Compiled.__call__ = call
            often = [times for times in launches.values() if len(times) >= _NUM_STEPS // 4]
            costs = [_median([_cost(*each, calls) for each in times]) for times in often]
            launches.clear()
            print(f"{count} rows: a step {step_s * 1e6:,.0f} us; launches {costs}", flush=True)
            yield count, {"step_us": step_s * 1e6, "programs": list(map(dataclasses.asdict, costs))}


def _generate(llm: Any, rows: int) -> float:
    """Seconds of a decode step."""
    from jaxinfer import SamplingParams

    def seconds(num_tokens: int) -> float:
        prompts = [[1 + i, *range(2, _PROMPT_LEN + 1)] for i in range(rows)]
        params = SamplingParams(max_tokens=num_tokens, temperature=0.0, ignore_eos=True)
        llm.reset_prefix_cache()
        start = time.perf_counter()
        llm.generate(prompts, params, use_tqdm=False)
        return time.perf_counter() - start

    few = seconds(2)
    return (seconds(2 + _NUM_STEPS) - few) / _NUM_STEPS


def _cost(start: float, end: float, calls: Sequence[DriverCall]) -> LaunchCost:
    within = [each for each in calls if start <= each.start and each.end <= end]
    launched = [each for each in within if each.name.startswith(_IS_LAUNCH)]
    launched = launched or within[-1:] or [DriverCall("", 0, end, end)]
    first, graph = min(each.start for each in [*within, *launched]), launched[-1]

    def us(of: Sequence[DriverCall]) -> float:
        return sum(each.end - each.start for each in of) * 1e6

    before_graph = [each for each in within if each.end <= graph.start]
    after_graph = [each for each in within if each.start >= graph.end]
    updates = [each for each in within if each.name.startswith(_IS_UPDATE)]
    return LaunchCost(
        total=(end - start) * 1e6,
        before=(first - start) * 1e6,
        preparing=(graph.start - first) * 1e6 - us(before_graph),
        updates=us(updates),
        graph_launch=us([graph]),
        other_driver=us(before_graph) + us(after_graph) - us(updates),
        after=(end - graph.end) * 1e6 - us(after_graph),
        driver_calls=dict(Counter(each.name for each in within)),
    )


def _median(costs: Sequence[LaunchCost]) -> LaunchCost:
    """The launch whose total is the median, of the program's that launch a graph."""
    costs = [each for each in costs if each.graph_launch] or costs
    total = statistics.median_low(each.total for each in costs)
    return next(each for each in costs if each.total == total)


if __name__ == "__main__":
    end_process(main())
