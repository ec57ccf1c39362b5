"""Fits what steps take beyond their floors, for `jaxinfer plan`, to the recorded runs of an H200.

Writes `jaxinfer/planning/overheads.json` from `benchmarks/results/`; `--check` only says whether it
is up to date.
"""

import argparse
import dataclasses
import json
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from scipy.optimize import nnls

from jaxinfer.planning.cost import decode_step_floor_s, model_cost, prefill_floor_s
from jaxinfer.planning.devices import H200
from jaxinfer.planning.named_shapes import NAMED_SHAPES
from jaxinfer.planning.shapes import ModelShape
from scripts.figures.results import ROOT, load_results

FILE = ROOT / "jaxinfer" / "planning" / "overheads.json"
_DIGITS = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
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


def points(records: Sequence[dict[str, Any]]) -> Iterator[Point]:
    """Times of one known batch: batch sizes, one sequence (W2) and long prompts (W3)."""
    for record in records:
        engine = record.get("engine") or {}
        if "H200" not in record["machine"]["device"] or engine.get("data_parallel_size") != 1:
            continue
        for speed in record.get("speeds", []):
            rows, prompt = speed["rows"], speed["prompt_tokens"]
            context = prompt + speed["decode_steps"] // 2
            yield _point(record, "decode", rows, context, speed["decode_step_s"])
            yield _point(record, "prefill", rows, prompt, speed["prefill_s"])
        workload = record.get("workload")
        if workload in ("W2", "W3"):
            median = record["runs"]["cold"]["median"]
            if workload == "W2":
                yield _point(record, "decode", 1, 512 + 256, median["tpot_s"])
                yield _point(record, "prefill", 1, 512, median["ttft_s"])
            else:
                yield _point(record, "prefill", 16, 2048, median["seconds"])


def _point(record: dict[str, Any], what: str, rows: int, context: int, seconds: float) -> Point:
    num_devices = record["engine"]["tensor_parallel_size"]
    shape = record_shape(record)
    cost = model_cost(shape, 2, num_devices)
    if what == "decode":
        floor = decode_step_floor_s(cost, H200, rows, rows * context)
    else:
        floor = prefill_floor_s(cost, H200, [context] * rows)
    return Point(
        record=record["file"],
        what=what,
        shape=shape,
        num_devices=num_devices,
        rows=rows,
        tokens=rows * context if what == "prefill" else 0,
        floor_s=floor,
        seconds=seconds,
    )


def record_shape(record: dict[str, Any]) -> ModelShape:
    """The shape that a record was made with ("Qwen3-0.6b shape")."""
    size = re.fullmatch(r"Qwen3-(\S+) shape", record["model"])
    if size is None:
        raise ValueError(f"{record['file']}: model {record['model']!r} is not a named shape")
    return NAMED_SHAPES[f"Qwen3-{size[1].upper()}"]


def _columns(point: Point) -> tuple[float, float, float]:
    """What the three overheads of its kind on one device are multiplied by."""
    layers = point.shape.num_hidden_layers
    if point.what == "decode":
        return point.floor_s, layers, point.rows
    return point.floor_s, 1, point.tokens * layers * point.shape.hidden_size


def fit(points: Sequence[Point]) -> dict[str, Any]:
    """The overheads and how far each point is from them, as JSON-like values.

    Least squares of relative errors, without negative terms. One device first; the sums over
    several devices then explain what is left of the others' times.
    """
    overheads: dict[str, float] = {}
    compared = []
    names = {
        "decode": ("decode_of_floor", "decode_layer_s", "decode_row_s"),
        "prefill": ("prefill_of_floor", "prefill_launch_s", "prefill_value_s"),
    }
    for what, terms in names.items():
        chosen = [point for point in points if point.what == what]
        single = [point for point in chosen if point.num_devices == 1]
        several = [point for point in chosen if point.num_devices > 1]
        found = _solve(single, [_columns(point) for point in single], np.zeros(len(single)))
        left = np.array([np.dot(_columns(point), found) for point in several])
        layers = [(float(point.shape.num_hidden_layers),) for point in several]
        sums = _solve(several, layers, left)
        overheads |= dict(zip(terms, map(float, found), strict=True))
        overheads[f"{what}_sum_s"] = float(sums[0])
        for point in chosen:
            own = np.dot(_columns(point), found)
            own += sums[0] * point.shape.num_hidden_layers * (point.num_devices > 1)
            compared.append((point, point.floor_s + own))
    worst = max(abs(expected / point.seconds - 1) for point, expected in compared)
    return {
        "overheads": {
            name: _round(value) for name, value in (overheads | {"worst": worst}).items()
        },
        "points": [
            {
                "record": point.record,
                "what": point.what,
                "rows": point.rows,
                "devices": point.num_devices,
                "floor_s": _round(point.floor_s),
                "expected_s": _round(expected),
                "recorded_s": _round(point.seconds),
            }
            for point, expected in compared
        ],
    }


def _solve(points: Sequence[Point], columns: Sequence[Any], explained: np.ndarray) -> np.ndarray:
    """Factors of `columns` that make up what is beyond floors and `explained` seconds."""
    seconds = np.array([point.seconds for point in points])
    floors = np.array([point.floor_s for point in points])
    scaled = np.array(columns, dtype=float) / seconds[:, None]
    size = scaled.max(axis=0)
    found, _ = nnls(scaled / size, (seconds - floors - explained) / seconds)
    return found / size


def _round(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


def main(argv: Sequence[str] | None = None) -> int:
    """Write the file, or compare it; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="status 1 if the file is out of date")
    arguments = parser.parse_args(argv)
    text = json.dumps(fit(list(points(load_results()))), indent=1) + "\n"
    if arguments.check:
        return 0 if FILE.read_text() == text else 1
    FILE.write_text(text)
    print(f"wrote {FILE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
