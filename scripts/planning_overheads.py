"""Fits steps' overheads beyond their floors, for `jaxinfer plan`, to recorded runs of an H200.

Writes `jaxinfer/planning/overheads.json` from `benchmarks/results/`; `--check` only says whether
the records that it names give the same.
"""

import argparse
import functools
import itertools
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np
from scipy.optimize import nnls

from jaxinfer.model.quantized.quantization import with_scheme
from jaxinfer.planning.cost import ModelCost, decode_step_floor_s, model_cost, prefill_floor_s
from jaxinfer.planning.devices import H200
from jaxinfer.planning.named_shapes import NAMED_SHAPES
from jaxinfer.planning.shapes import PLAIN, ModelShape
from jaxinfer.planning.times import Overheads, expected_decode_s, expected_prefill_s
from scripts.measurements.results import ROOT, is_of_a_variant, load_results
from scripts.speed.workloads import make_workload

FILE = ROOT / "jaxinfer" / "planning" / "overheads.json"
_DIGITS = 4
# Recorded before these steps became faster: times that no engine takes any more.
_OUTDATED = {("20261128-193832-nvidia-h200-w2-32b.json", "prefill")}
_SHARES = ("decode_of_floor", "prefill_of_floor")
_TERMS = {
    "decode": ("decode_of_floor", "decode_layer_s", "decode_row_s"),
    "prefill": ("prefill_of_floor", "prefill_launch_s", "prefill_value_s"),
}


@dataclass(frozen=True, kw_only=True)
class Point:
    """One recorded time.

    Attributes:
        record: file in `benchmarks/results`.
        what: "decode" (a step) or "prefill".
        shape: the model.
        num_devices: that share it.
        rows: sequences.
        tokens: of all prompts; 0 for a decode step.
        floor_s: the least.
        seconds: recorded.
    """

    record: str
    what: str
    shape: ModelShape
    num_devices: int
    rows: int
    tokens: int
    floor_s: float
    seconds: float

    @property
    def floors(self) -> tuple[float, float]:
        """Of decode steps and of prefills."""
        return (self.floor_s, 0.0) if self.what == "decode" else (0.0, self.floor_s)

    def expected_s(self, overheads: Overheads) -> float:
        """Seconds with these overheads."""
        where: Any = {"shape": self.shape, "num_devices": self.num_devices, "overheads": overheads}
        if self.what == "decode":
            return expected_decode_s(self.floor_s, rows=self.rows, **where)
        return expected_prefill_s(self.floor_s, tokens=self.tokens, **where)


@dataclass(frozen=True, kw_only=True)
class WorkloadRun:
    """A recorded run of W1: 256 sequences that begin together, each with a length of its own.

    Attributes:
        record: file in `benchmarks/results`.
        steps: its prefill and each of its decode steps, as points without recorded seconds.
        seconds: recorded, of all.
    """

    record: str
    steps: tuple[Point, ...]
    seconds: float
    what: str = "W1"

    @property
    def shape(self) -> ModelShape:
        """The model."""
        return self.steps[0].shape

    @property
    def floors(self) -> tuple[float, float]:
        """Of decode steps and of prefills."""
        of_kinds = zip(*(step.floors for step in self.steps), strict=True)
        decode, prefill = map(sum, of_kinds)
        return decode, prefill

    @property
    def rows(self) -> int:
        """Sequences that begin."""
        return self.steps[0].rows

    @property
    def num_devices(self) -> int:
        """Devices that share the model."""
        return self.steps[0].num_devices

    @property
    def floor_s(self) -> float:
        """The least."""
        return sum(step.floor_s for step in self.steps)

    @property
    def summed(self) -> float:
        """What `Overheads.decode_sum_value_s` is multiplied by, over all decode steps."""
        rows = sum(step.rows for step in self.steps if step.what == "decode")
        values = self.shape.num_hidden_layers * self.shape.hidden_size
        return rows * values * (self.num_devices - 1)

    def expected_s(self, overheads: Overheads) -> float:
        """Seconds with these overheads."""
        return sum(step.expected_s(overheads) for step in self.steps)


def workload_runs(records: Sequence[dict[str, Any]]) -> Iterator[WorkloadRun]:
    """Every W1 on an H200, or on several that share the model."""
    for record in records:
        if record.get("workload") != "W1" or not _is_counted(record):
            continue
        workload = make_workload("W1", 0, vocab_size=record_shape(record).vocab_size)
        lengths = [len(prompt) for prompt in workload.prompts]
        steps = [_point(record, "prefill", lengths, 0.0)]
        for step in range(1, max(workload.max_tokens)):
            pairs = zip(lengths, workload.max_tokens, strict=True)
            running = [length + step for length, most in pairs if most > step]
            steps.append(_point(record, "decode", running, 0.0))
        seconds = record["runs"]["cold"]["median"]["seconds"]
        yield WorkloadRun(record=record["file"], steps=tuple(steps), seconds=seconds)


def _is_counted(record: dict[str, Any]) -> bool:
    """Of one replica with a plain cache, whatever its weights are."""
    engine = record.get("engine") or {}
    is_one = "H200" in record["machine"]["device"] and engine.get("data_parallel_size") == 1
    return is_one and not is_of_a_variant(record, besides=("--quantization",))


def points(records: Sequence[dict[str, Any]]) -> Iterator[Point]:
    """Times of one known batch: batch sizes, one sequence (W2) and long prompts (W3)."""
    counted = filter(_is_counted, records)
    known = itertools.chain.from_iterable(map(_points_of, counted))
    return (point for point in known if (point.record, point.what) not in _OUTDATED)


def _points_of(record: dict[str, Any]) -> Iterator[Point]:
    for speed in record.get("speeds", []):
        rows, prompt = speed["rows"], speed["prompt_tokens"]
        context = prompt + speed["decode_steps"] // 2
        yield _point(record, "decode", [context] * rows, speed["decode_step_s"])
        yield _point(record, "prefill", [prompt] * rows, speed["prefill_s"])
    workload = record.get("workload")
    if workload in ("W2", "W3"):
        median = record["runs"]["cold"]["median"]
        if workload == "W2":
            yield _point(record, "decode", [512 + 256], median["tpot_s"])
            yield _point(record, "prefill", [512], median["ttft_s"])
        else:
            yield _point(record, "prefill", [2048] * 16, median["seconds"])


def _point(record: dict[str, Any], what: str, lengths: list[int], seconds: float) -> Point:
    num_devices = record["engine"]["tensor_parallel_size"]
    shape = record_shape(record)
    cost = _cost(shape, num_devices)
    if what == "decode":
        floor = decode_step_floor_s(cost, H200, len(lengths), sum(lengths))
    else:
        floor = prefill_floor_s(cost, H200, lengths)
    return Point(
        record=record["file"],
        what=what,
        shape=shape,
        num_devices=num_devices,
        rows=len(lengths),
        tokens=sum(lengths) if what == "prefill" else 0,
        floor_s=floor,
        seconds=seconds,
    )


@functools.cache
def _shape(name: str, scheme: str | None) -> ModelShape:
    shape = NAMED_SHAPES[name]
    return shape if scheme is None else with_scheme(shape, scheme)


@functools.cache
def _cost(shape: ModelShape, num_devices: int) -> ModelCost:
    return model_cost(shape, 2, num_devices)


def record_shape(record: dict[str, Any]) -> ModelShape:
    """The shape that a record was made with ("Qwen3-0.6b shape"), its weights quantized or not."""
    size = re.fullmatch(r"Qwen3-(\S+) shape", record["model"])
    if size is None:
        raise ValueError(f"{record['file']}: model {record['model']!r} is not a named shape")
    return _shape(f"Qwen3-{size[1].upper()}", record["engine"].get("quantization"))


def _columns(point: Point) -> tuple[float, float, float]:
    """What the three overheads of its kind on one device are multiplied by."""
    layers = point.shape.num_hidden_layers
    if point.what == "decode":
        return point.floor_s, layers, point.rows
    return point.floor_s, 1, point.tokens * layers * point.shape.hidden_size


def fit(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The overheads and how far each recorded time is from them, as JSON-like values.

    Least squares of relative errors, without negative terms. First plain weights, then the shares
    of the floors anew for each other kind.
    """
    known: dict[str, list[Point | WorkloadRun]] = defaultdict(list)
    for each in (*points(records), *workload_runs(records)):
        known[each.shape.weights_kind].append(each)
    plain = known.pop(PLAIN)
    found = {PLAIN: _fit_plain(plain)}
    found |= {kind: _fit_shares(found[PLAIN], times) for kind, times in sorted(known.items())}
    return {
        "overheads": {
            kind: {
                name: _round(value)
                for name, value in asdict(overheads).items()
                if kind == PLAIN or name in (*_SHARES, "worst")
            }
            for kind, overheads in found.items()
        },
        "points": [
            {
                "record": each.record,
                "weights": kind,
                "what": each.what,
                "rows": each.rows,
                "devices": each.num_devices,
                "floor_s": _round(each.floor_s),
                "expected_s": _round(each.expected_s(found[kind])),
                "recorded_s": _round(each.seconds),
            }
            for kind, times in ({PLAIN: plain} | dict(sorted(known.items()))).items()
            for each in times
        ],
    }


def _fit_plain(times: Sequence[Point | WorkloadRun]) -> Overheads:
    """The overheads of plain weights, one kind of them after the other.

    What a device takes alone; of the other times what is left for sums over several devices; and of
    W1 on several devices, where many rows decode, what is left for the values in these sums.
    """
    known = [each for each in times if isinstance(each, Point)]
    found = Overheads(**dict.fromkeys((field.name for field in fields(Overheads)), 0.0))
    for what, terms in _TERMS.items():
        alone = [point for point in known if point.what == what and point.num_devices == 1]
        found = _fitted(found, terms, alone, [_columns(point) for point in alone])
        shared = [point for point in known if point.what == what and point.num_devices > 1]
        layers = [(point.shape.num_hidden_layers,) for point in shared]
        found = _fitted(found, (f"{what}_sum_s",), shared, layers)
    runs = [each for each in times if isinstance(each, WorkloadRun)]
    shared = [run for run in runs if run.num_devices > 1]
    found = _fitted(found, ("decode_sum_value_s",), shared, [(run.summed,) for run in shared])
    return _with_worst(found, times)


def _fit_shares(plain: Overheads, times: Sequence[Point | WorkloadRun]) -> Overheads:
    """The overheads of other weights: the shares of their floors, and the rest as of plain ones."""
    found = replace(plain, **dict.fromkeys(_SHARES, 0.0))
    found = _fitted(found, _SHARES, times, [each.floors for each in times])
    return _with_worst(found, times) if len(times) > len(_SHARES) else replace(found, worst=None)


def _with_worst(found: Overheads, times: Sequence[Point | WorkloadRun]) -> Overheads:
    worst = max(abs(each.expected_s(found) / each.seconds - 1) for each in times)
    return replace(found, worst=worst)


def _fitted(
    found: Overheads, terms: Sequence[str], times: Sequence[Any], columns: Sequence[Any]
) -> Overheads:
    """`found` with the terms that make up what it leaves of the recorded times."""
    seconds = np.array([each.seconds for each in times])
    explained = np.array([each.expected_s(found) for each in times])
    scaled = np.array(columns, dtype=float) / seconds[:, None]
    size = scaled.max(axis=0)
    factors, _ = nnls(scaled / size, (seconds - explained) / seconds)
    return replace(found, **dict(zip(terms, map(float, factors / size), strict=True)))


def _round(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.{_DIGITS}g}")


def main(argv: Sequence[str] | None = None) -> int:
    """Write the file, or compare it; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="status 1 if the file is not what its records give"
    )
    arguments = parser.parse_args(argv)
    records = load_results()
    if arguments.check:
        text = FILE.read_text()
        named = {point["record"] for point in json.loads(text)["points"]}
        return 0 if text == _text([record for record in records if record["file"] in named]) else 1
    FILE.write_text(_text(records))
    print(f"wrote {FILE.relative_to(ROOT)}")
    return 0


def _text(records: Sequence[dict[str, Any]]) -> str:
    return json.dumps(fit(records), indent=1) + "\n"


if __name__ == "__main__":
    sys.exit(main())
