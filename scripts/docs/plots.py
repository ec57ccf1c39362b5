"""The plots of docs/performance.md: drawn with matplotlib, checked without it.

Each SVG carries the numbers that it shows as JSON in its description. Whether a plot is up to date
is decided by the data, because the drawing itself differs from one version of matplotlib to the
next.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from scripts.docs.tables import latest
from scripts.docs.targets import num_devices

Record = dict[str, Any]
Numbers = dict[str, Any]
_DESCRIPTION = "{http://purl.org/dc/elements/1.1/}description"


def workload_floors(records: list[Record]) -> Numbers:
    """Share of the floor of each workload: {model and device: {workload: share}}."""
    shares: Numbers = {}
    for record in latest(records, "workload"):
        for kind, run in record["runs"].items():
            if run["floor"] is None:
                continue
            name = record["workload"] + (f" {kind}" if len(record["runs"]) > 1 else "")
            share = run["floor"]["total_shared_s"] / run["median"]["seconds"]
            shares.setdefault(_title(record), {})[name] = round(share, 4)
    return shares


def batch_floors(records: list[Record]) -> Numbers:
    """Share of the floor over batch sizes: {model and device: {"prefill": {rows: share}, ...}}."""
    shares: Numbers = {}
    for record in latest(records, "batches"):
        lines = {
            what: {
                str(speed["rows"]): round(speed[f"{what}_of_floor"], 4)
                for speed in record["speeds"]
                if speed[f"{what}_of_floor"] is not None
            }
            for what in ("prefill", "decode")
        }
        if any(lines.values()):
            shares[_title(record)] = lines
    return shares


def _title(record: Record) -> str:
    weights = record.get("engine", {}).get("quantization")
    model = f"{record['model']} in {weights}" if weights else record["model"]
    return f"{model}, {num_devices(record)} x {record['machine']['device']}"


def draw_workloads(numbers: Numbers, axes: Any) -> None:
    """Bars, a group for each workload."""
    names = sorted({name for shares in numbers.values() for name in shares})
    width = 0.8 / len(numbers)
    for i, (title, shares) in enumerate(numbers.items()):
        at = [names.index(name) + (i - (len(numbers) - 1) / 2) * width for name in shares]
        bars = axes.bar(at, [100 * share for share in shares.values()], width, label=title)
        axes.bar_label(bars, fmt="%.0f", padding=2)
    axes.set_xticks(range(len(names)), names)


def draw_batches(numbers: Numbers, axes: Any) -> None:
    """Lines, solid for decoding and dashed for prefill."""
    for i, (title, lines) in enumerate(numbers.items()):
        for what, style in (("decode", "-o"), ("prefill", "--s")):
            rows = [int(count) for count in lines[what]]
            shares = [100 * share for share in lines[what].values()]
            axes.plot(rows, shares, style, color=f"C{i}", label=f"{what}, {title}")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("sequences")


PLOTS: dict[str, tuple[Callable[[list[Record]], Numbers], Callable[[Numbers, Any], None]]] = {
    "workload-floors": (workload_floors, draw_workloads),
    "batch-floors": (batch_floors, draw_batches),
}


def plot_lines(name: str, records: list[Record]) -> list[str]:
    """The lines for the page: the picture, or a note that there is none."""
    numbers = PLOTS[name][0](records)
    if not numbers:
        return ["Not measured yet."]
    return [f"![share of the floor: {', '.join(numbers)}](figures/{name}.svg)"]


def is_current(name: str, records: list[Record], directory: Path) -> bool:
    """Whether the plot shows these records' numbers; one without numbers must not exist."""
    path = directory / f"{name}.svg"
    return shown_numbers(path) == PLOTS[name][0](records)


def shown_numbers(path: Path) -> Numbers:
    """The numbers that a plot was drawn from; none if there is no plot."""
    if not path.exists():
        return {}
    description = ElementTree.parse(path).find(f".//{_DESCRIPTION}")
    return json.loads(description.text or "") if description is not None else {}


def update_plot(name: str, records: list[Record], directory: Path) -> None:
    """Draw a plot anew if its numbers changed; remove it if there are none.

    Raises:
        ImportError: it must be drawn and matplotlib is missing.
    """
    if is_current(name, records, directory):
        return
    numbers_of, draw = PLOTS[name]
    path, numbers = directory / f"{name}.svg", numbers_of(records)
    if not numbers:
        path.unlink()
        return
    # Of the dev extra, not of the test extra.
    import matplotlib  # pyright: ignore[reportMissingImports]
    from matplotlib.figure import Figure  # pyright: ignore[reportMissingImports]

    # Ids that do not change from run to run, and text that stays text.
    style: Any = {
        "svg.hashsalt": name,
        "svg.fonttype": "none",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "font.size": 10,
    }
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(7.5, 3.6), layout="constrained")
        axes = figure.subplots()
        draw(numbers, axes)
        axes.set_ylim(0, 100)
        axes.set_ylabel("% of the floor's speed")
        axes.grid(axis="y", alpha=0.3)
        figure.legend(loc="outside upper left", ncols=2, frameon=False)
        path.parent.mkdir(parents=True, exist_ok=True)
        described = {"Date": None, "Description": json.dumps(numbers)}
        figure.savefig(path, format="svg", metadata=described)
