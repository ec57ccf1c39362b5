"""The report of a load on a server: latencies, rates, goodput, and a check of token counts."""

import collections
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxinfer.cli.client.load import Load, LoadResult, run_load
from jaxinfer.cli.client.server import Target
from jaxinfer.cli.client.stream import StreamRecord
from jaxinfer.profiling.figures import share_text

SLO_NAMES = ("ttft", "tpot", "e2el")
_PERCENTILES = (50, 90, 99)


def parse_slos(texts: Sequence[str]) -> dict[str, float]:
    """Service level objectives such as "ttft:500", in milliseconds; else ValueError."""
    slos = {}
    for text in texts:
        name, _, value = text.partition(":")
        try:
            slos[name] = float(value)
        except ValueError:
            slos[name] = 0.0
        if name not in SLO_NAMES or not 0 < slos[name] < float("inf"):
            names = ", ".join(SLO_NAMES)
            raise ValueError(f"--goodput {text!r}: give NAME:MILLISECONDS, NAME one of {names}")
    return slos


def num_tokens(record: StreamRecord) -> int:
    """Tokens of an answer: as the server counts them, or else its events with tokens."""
    if record.completion_tokens is not None:
        return record.completion_tokens
    return 0 if record.first is None else len(record.gaps) + 1


def latencies_ms(record: StreamRecord) -> dict[str, float]:
    """Milliseconds from sending to the first token, per token after it, and to the last token."""
    first = record.last if record.first is None else record.first
    tokens = num_tokens(record)
    return {
        "ttft": 1e3 * (first - record.sent),
        "tpot": 1e3 * (record.last - first) / max(tokens - 1, 1),
        "e2el": 1e3 * (record.last - record.sent),
    }


def measure_server(
    target: Target, load: Load, *, slos: Mapping[str, float], num_processes: int = 1
) -> dict[str, Any]:
    """Send a load to a server, after one request that must succeed; JSON-like figures.

    Raises:
        ValueError: the server refuses the first request.
        RuntimeError: a process of the client ended before its time.
    """
    first = dataclasses.replace(load, num_prompts=1, max_concurrency=None, seed=load.seed + 1)
    (record,) = run_load(target, first, 1).records
    if record.error is not None:
        raise ValueError(f"{target.url} fails at the first request: {record.error}")
    result = run_load(target, load, num_processes)
    return {"server": target.url, **dataclasses.asdict(load), **load_report(load, result, slos)}


def load_report(load: Load, result: LoadResult, slos: Mapping[str, float]) -> dict[str, Any]:
    """All figures of a load as JSON-like values.

    Args:
        slos: milliseconds at most, by names of `SLO_NAMES`; a request counts for goodput if it
            meets all of them.
    """
    good = [r for r in result.records if r.error is None and r.first is not None]
    end = max((record.last for record in good), default=result.start)
    seconds = max(end - result.start, 1e-9)
    each = [latencies_ms(record) for record in good]
    of_many = [ms for ms, record in zip(each, good, strict=True) if num_tokens(record) > 1]
    prompt_tokens = sum(record.prompt_tokens or 0 for record in good)
    output_tokens = sum(num_tokens(record) for record in good)
    report = {
        "duration_s": seconds,
        "num_completed": len(good),
        "errors": _errors(result.records),
        "usage_differs": sum(_usage_differs(load, record) for record in good),
        "usage_missing": sum(record.completion_tokens is None for record in good),
        "prompt_tokens": prompt_tokens,
        "cached_tokens": sum(record.cached_tokens for record in good),
        "output_tokens": output_tokens,
        "requests_per_s": len(good) / seconds,
        "output_tokens_per_s": output_tokens / seconds,
        "total_tokens_per_s": (prompt_tokens + output_tokens) / seconds,
        "peak_concurrency": _peak_concurrency(result.records),
        "ttft_ms": _summary([ms["ttft"] for ms in each]),
        "tpot_ms": _summary([ms["tpot"] for ms in of_many]),
        "itl_ms": _summary([1e3 * gap for record in good for gap in record.gaps]),
        "e2el_ms": _summary([ms["e2el"] for ms in each]),
        "client": {
            "processes": result.num_processes,
            "cores_used": result.cpu_s / seconds,
            "late_ms": _summary(_lateness(load, result.records)),
        },
    }
    if slos:
        met = sum(all(ms[name] <= slos[name] for name in slos) for ms in each)
        report["goodput"] = {"slo_ms": dict(slos), "requests_per_s": met / seconds}
        report["goodput"]["share"] = met / len(result.records)
    return report


def _errors(records: Sequence[StreamRecord]) -> dict[str, int]:
    """The number of requests with each error, the most frequent first."""
    errors = [r.error or "an answer without a token" for r in records if r.error or r.first is None]
    return dict(collections.Counter(errors).most_common())


def _usage_differs(load: Load, record: StreamRecord) -> bool:
    if record.completion_tokens is None:
        return False
    counted = record.prompt_tokens, record.completion_tokens
    return counted != (load.input_len, load.output_len)


def _lateness(load: Load, records: Sequence[StreamRecord]) -> list[float]:
    """Milliseconds that requests were sent late; none where requests wait for each other."""
    if load.max_concurrency is not None:
        return []
    return [1e3 * (record.sent - record.due) for record in records if record.sent]


def _peak_concurrency(records: Sequence[StreamRecord]) -> int:
    changes = sorted(
        change for record in records for change in ((record.sent, 1), (record.last, -1))
    )
    return int(np.cumsum([change for _, change in changes]).max(initial=0))


def _summary(values: Sequence[float]) -> dict[str, float] | None:
    if not values:
        return None
    figures = np.percentile(values, _PERCENTILES).tolist()
    names = [f"p{number}" for number in _PERCENTILES]
    return {"mean": float(np.mean(values)), **dict(zip(names, figures, strict=True))}


def report_lines(report: Mapping[str, Any]) -> list[str]:
    """The figures of `load_report` as a table."""
    asked = f"of {report['num_completed'] + sum(report['errors'].values())}"
    lines = [
        f"{report['num_completed']} {asked} requests completed in {report['duration_s']:.2f} s, "
        f"{report['requests_per_s']:.2f} a second, {report['peak_concurrency']} at a time at most",
        f"output {report['output_tokens_per_s']:.1f} tok/s, prompts and output "
        f"{report['total_tokens_per_s']:.1f} tok/s; {report['cached_tokens']} of "
        f"{report['prompt_tokens']} prompt tokens cached",
        "",
        f"{'ms':<24}{'mean':>10}{'p50':>10}{'p90':>10}{'p99':>10}",
    ]
    names = {
        "ttft_ms": "time to first token",
        "tpot_ms": "time per output token",
        "itl_ms": "between events",
        "e2el_ms": "whole answer",
    }
    for key, name in names.items():
        if (summary := report[key]) is not None:
            figures = "".join(f"{summary[each]:>10.2f}" for each in ("mean", "p50", "p90", "p99"))
            lines.append(f"{name:<24}{figures}")
    return [*lines, "", *_remarks(report)]


def _remarks(report: Mapping[str, Any]) -> list[str]:
    client = report["client"]
    lines = [f"client: {client['cores_used']:.2f} cores in {client['processes']} processes"]
    if (late := client["late_ms"]) is not None:
        lines[0] += f", requests sent {late['p99']:.1f} ms late (p99)"
    if goodput := report.get("goodput"):
        slos = ", ".join(f"{name} <= {ms:g} ms" for name, ms in goodput["slo_ms"].items())
        lines.append(
            f"goodput {goodput['requests_per_s']:.2f} requests/s, "
            f"{share_text(goodput['share'], 1)} ({slos})"
        )
    if count := report["usage_differs"]:
        lines.append(f"{count} answers whose usage differs from what was asked")
    if count := report["usage_missing"]:
        lines.append(f"{count} answers without usage: their tokens are counted by events")
    return lines + [f"{count} failed: {error}" for error, count in report["errors"].items()]
