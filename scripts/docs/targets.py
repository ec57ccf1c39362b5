"""Targets of the engine's speed on one H200, beside the engine's and other engines' figures.

The other engines' figures were measured on the same machine with the same workloads, random bf16
weights of the same shapes: vLLM 0.26.0 (FlashAttention-3, torch.compile, CUDA graphs, asynchronous
scheduling, in process) and nano-vLLM with FlashAttention-3.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from scripts.kernels.runs import percent_of_copy
from scripts.measurements.results import is_of_a_variant

Record = dict[str, Any]
DEVICE = "H200"


@dataclass(frozen=True, kw_only=True)
class Target:
    """One figure.

    Attributes:
        figure: its name, with its unit.
        shape: of the model, a name of `SERVED_SHAPES`.
        read: the figure of a record, or None if the record does not hold it.
        aim: the target; None where the other engines' figure is given for comparison only.
        vllm: vLLM's.
        nano_vllm: nano-vLLM's.
        more_is_better: whether it is a speed; times and bytes are better when less.
    """

    figure: str
    shape: str
    read: Callable[[Record], float | None]
    aim: float | None
    vllm: float | None = None
    nano_vllm: float | None = None
    more_is_better: bool = False

    def reached(self, records: Iterable[Record]) -> tuple[float, Record] | None:
        """The figure of the newest record that holds it, taken on one device of that kind."""
        for record in reversed([*records]):
            if DEVICE not in record["machine"]["device"] or num_devices(record) > 1:
                continue
            if is_of_a_variant(record):
                continue
            # Kernels are timed at one model's shapes, and their records name none.
            if record.get("model") != f"Qwen3-{self.shape} shape" and record["kind"] != "kernels":
                continue
            value = self.read(record)
            if value is not None:
                return value, record
        return None

    def share(self, value: float) -> float | None:
        """How much of the aim `value` is, above 1 if better; None where that can't be said."""
        if self.aim is None or value <= 0:
            return None
        return value / self.aim if self.more_is_better else self.aim / value


def num_devices(record: Record) -> int:
    """Devices that an engine ran on."""
    engine = record.get("engine", {})
    kinds = ("tensor", "pipeline", "context", "data")
    return math.prod(engine.get(f"{kind}_parallel_size", 1) for kind in kinds)


def _median(
    workload: str, name: str, run: str = "cold", unit: float = 1.0
) -> Callable[[Record], float | None]:
    def read(record: Record) -> float | None:
        if record.get("workload") != workload:
            return None
        value = record["runs"][run]["median"][name]
        return None if value is None else value * unit

    return read


def _start(*, warm: bool) -> Callable[[Record], float | None]:
    """Start to ready, with all programs to be compiled or all of them in the cache.

    From starts that were measured by themselves: the one before a workload is not repeated, and
    has as many buckets as the workload needs.
    """
    return lambda record: record.get("warm_median_s" if warm else "cold_median_s")


def _kernel(
    case: str, figure: Callable[[dict[str, Any]], float | None]
) -> Callable[[Record], float | None]:
    """A figure of a kernel's result, of the configuration that is served."""

    def read(record: Record) -> float | None:
        results = record["results"] if record["kind"] == "kernels" else []
        served = (r for r in results if r["case"] == case and r["config"] is None)
        return next((figure(result) for result in served), None)

    return read


def _attention(figure: str, case: str, aim: float) -> Target:
    read = _tflops if case.startswith("prefill") else percent_of_copy
    return Target(
        figure=figure, shape="0.6b", read=_kernel(case, read), aim=aim, more_is_better=True
    )


def _tflops(result: dict[str, Any]) -> float | None:
    return result.get("tflops")


def _other_memory(record: Record) -> float | None:
    # Without a workload few programs have run.
    other = record["memory"].get("other_bytes") if "workload" in record else None
    return None if other is None else other / 1e9


def _speed(
    workload: str, name: str, shape: str, aim: float, vllm: float, nano: float | None = None
) -> Target:
    return Target(
        figure=f"{workload} {name.split('_')[0]} tok/s",
        shape=shape,
        read=_median(workload, name),
        aim=aim,
        vllm=vllm,
        nano_vllm=nano,
        more_is_better=True,
    )


def _milliseconds(
    name: str, shape: str, aim: float, vllm: float, nano: float | None = None
) -> Target:
    return Target(
        figure=f"W2 {name.removesuffix('_s').upper()} ms",
        shape=shape,
        read=_median("W2", name, unit=1e3),
        aim=aim,
        vllm=vllm,
        nano_vllm=nano,
    )


def _shared_prefix(run: str, aim: float | None, vllm: float, nano: float) -> Target:
    return Target(
        figure=f"W4 {run} s",
        shape="0.6b",
        read=_median("W4", "seconds", run),
        aim=aim,
        vllm=vllm,
        nano_vllm=nano,
    )


_OUTPUT, _PROMPT = "output_tokens_per_s", "prompt_tokens_per_s"

TARGETS = (
    _attention("decode attention, B=256, % of 4.3 TB/s", "decode/B=256 page 16", 95),
    _attention("decode attention, B=8 of 8k, % of 4.3 TB/s", "decode/B=8 8k", 85),
    _attention("decode attention, B=1 of 32k, % of 4.3 TB/s", "decode/B=1 32k", 70),
    _attention("prefill attention, 4 x 2k, TFLOP/s", "prefill/4 x 2k page 16", 420),
    _attention("prefill attention, 8k, TFLOP/s", "prefill/1 x 8k page 16", 510),
    _speed("W1", _OUTPUT, "0.6b", 27_000, 23_400, 21_030),
    _milliseconds("tpot_s", "0.6b", 0.95, 1.645, 2.017),
    _milliseconds("ttft_s", "0.6b", 6.0, 6.6, 23.6),
    _speed("W3", _PROMPT, "0.6b", 430_000, 357_000, 348_000),
    _shared_prefix("cold", None, 0.336, 0.374),
    _shared_prefix("warm", 0.30, 0.324, 0.328),
    _speed("W5", _OUTPUT, "0.6b", 30_000, 28_150),
    _speed("W5-long", _OUTPUT, "0.6b", 11_000, 11_090),
    _speed("W1", _OUTPUT, "8b", 9_800, 9_050, 8_560),
    _milliseconds("tpot_s", "8b", 4.7, 5.249, 5.627),
    _speed("W3", _PROMPT, "8b", 43_000, 41_400, 40_500),
    _speed("W1", _OUTPUT, "30b-a3b", 6_200, 5_853),
    _speed("W3", _PROMPT, "30b-a3b", 75_000, 61_000),
    Target(
        figure="start to ready, nothing cached, s",
        shape="0.6b",
        read=_start(warm=False),
        aim=45,
        vllm=65,
        nano_vllm=25,
    ),
    Target(
        figure="start to ready, programs cached, s",
        shape="0.6b",
        read=_start(warm=True),
        aim=7,
        vllm=32,
    ),
    Target(
        figure="memory beyond weights, KV and the largest step, GB",
        shape="0.6b",
        read=_other_memory,
        aim=1.0,
    ),
)
