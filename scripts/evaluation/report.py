"""The evaluation as a record for JSON and as lines for people."""

from collections.abc import Mapping
from typing import Any

from jaxinfer.profiling.figures import share_text
from scripts.evaluation.rates import BARS, Rate


def rate_records(found: Mapping[str, Rate]) -> dict[str, Any]:
    """Hits, total, share and (where there is one) the bar of every rate, as JSON-like values."""
    return {
        name: {
            "hits": rate.hits,
            "total": rate.total,
            "share": rate.share,
            "bar": BARS.get(name),
        }
        for name, rate in found.items()
    }


def report_lines(report: Mapping[str, Any]) -> list[str]:
    """The report for people: one line a measure."""
    lines = [f"{report['model']}, {report['dtype']}, {report['attention_backend']} attention", ""]
    width = max(map(len, report["rates"]))
    for name, rate in report["rates"].items():
        bar = "" if rate["bar"] is None else f", bar {share_text(rate['bar'])}"
        if name in report["below_bar"]:
            bar += " MISSED"
        label = name.replace("_", " ")
        share = share_text(rate["share"], 2)
        lines.append(f"{label:<{width}}  {share:>7}  ({rate['hits']}/{rate['total']}{bar})")
    lines.append(f"{'story loss':<{width}}  {report['story_loss']:.4f} nats a token")
    return lines
