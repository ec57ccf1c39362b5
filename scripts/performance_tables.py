"""Writes the tables of docs/performance.md from the records in benchmarks/results/.

python scripts/performance_tables.py           # rewrite the tables
python scripts/performance_tables.py --check   # status 1 if they are not up to date
"""

import argparse
import statistics
import sys
from collections.abc import Callable, Sequence
from typing import Any

from scripts.figures.results import ROOT, load_results

PAGE = ROOT / "docs" / "performance.md"
Record = dict[str, Any]


def main(argv: Sequence[str] | None = None) -> int:
    """Rewrite or check the page; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="change nothing, compare")
    arguments = parser.parse_args(argv)
    page = PAGE.read_text()
    fresh = fill_tables(page, load_results())
    if arguments.check:
        return int(fresh != page)
    PAGE.write_text(fresh)
    return 0


def fill_tables(page: str, records: list[Record]) -> str:
    """Replace what stands between `<!-- table NAME -->` and `<!-- end -->` for every table.

    Raises:
        ValueError: the page lacks a table's marks.
    """
    for name, make in TABLES.items():
        begin, end = f"<!-- table {name} -->\n", "<!-- end -->"
        before, found, rest = page.partition(begin)
        _, closed, after = rest.partition(end)
        if not found or not closed:
            raise ValueError(f"docs/performance.md has no table {name}: write {begin}{end}")
        page = before + begin + "\n".join([*make(records), ""]) + end + after
    return page


def workload_table(records: list[Record]) -> list[str]:
    """The latest record of each workload, model, device and number of devices."""
    rows = []
    for record in _latest(records, "workload"):
        for kind, run in record["runs"].items():
            median, floor = run["median"], run["floor"]
            tpot = median["tpot_s"]
            rows.append(
                (
                    record["workload"] + (f" {kind}" if len(record["runs"]) > 1 else ""),
                    record["model"],
                    _devices(record),
                    record["attention_backend"],
                    f"{median['seconds']:.3f}",
                    f"{median['output_tokens_per_s']:,.0f}",
                    f"{median['prompt_tokens_per_s']:,.0f}",
                    f"{median['ttft_s'] * 1e3:.1f}",
                    "-" if tpot is None else f"{tpot * 1e3:.3f}",
                    "-" if floor is None else f"{floor['total_s'] / median['seconds']:.0%}",
                    f"{run['spread']:.3f}",
                    str(record["num_compilations"]),
                    _commit(record),
                )
            )
    header = "workload | model | device | attention | s | output tok/s | prompt tok/s | TTFT ms"
    header += " | TPOT ms | of floor | spread | compiled | commit"
    return _table(header, rows)


def start_table(records: list[Record]) -> list[str]:
    """Engine start and memory of the latest record of each workload."""
    rows = [
        (
            record["workload"],
            record["model"],
            record["machine"]["device"],
            f"{record['start_up_s']:.1f}",
            str(record["compiled_at_start"]),
            _gigabytes(record["memory"]["kv_bytes"]),
            _share(record["memory"]["kv_share"]),
            _gigabytes(record["memory"]["peak_bytes"]),
            _commit(record),
        )
        for record in _latest(records, "workload")
    ]
    header = "workload | model | device | start to ready s | programs | KV GB | KV share | peak GB"
    return _table(header + " | commit", rows)


def transformers_table(records: list[Record]) -> list[str]:
    """Output tokens a second beside transformers, the latest on each machine."""
    rows = [
        (
            record["machine"]["cpu"],
            str(record["machine"]["cpu_cores"]),
            f"{statistics.median(record['output_tokens_per_s']):,.0f}",
            f"{statistics.median(record['transformers_output_tokens_per_s']):,.0f}",
            f"{record['ratio']:.2f}",
            _commit(record),
        )
        for record in _latest(records, "compare-transformers")
    ]
    header = "processor | cores | jaxinfer tok/s | transformers tok/s | ratio | commit"
    return _table(header, rows)


def host_table(records: list[Record]) -> list[str]:
    """Host time per decode step beside longer and longer queues."""
    rows = [
        (
            record["machine"]["cpu"],
            f"{queue['waiting']:,}",
            f"{queue['finished']:,}",
            f"{queue['schedule_us']:.1f}",
            f"{queue['batch_us']:.1f}",
            f"{queue['schedule_and_batch_us']:.1f}",
            _commit(record),
        )
        for record in _latest(records, "host-cost")
        for queue in record["queues"]
    ]
    header = "processor | waiting | finished | schedule us | batch us | together us | commit"
    return _table(header, rows)


def start_up_table(records: list[Record]) -> list[str]:
    """Process start to first token on the bundled model."""
    rows = [
        (
            record["machine"]["cpu"],
            record["machine"]["device"],
            f"{record['cold_median_s']:.2f}",
            f"{record['warm_median_s']:.2f}",
            _commit(record),
        )
        for record in _latest(records, "start-up")
    ]
    return _table("processor | device | cache empty s | cache filled s | commit", rows)


def device_time_table(records: list[Record]) -> list[str]:
    """What the GPU's time went into, for the latest profiled record of each workload."""
    rows = [
        (
            record["workload"],
            record["model"],
            record["machine"]["device"],
            ", ".join(
                f"{kind} {share:.1%}" for kind, share in record["device_time"]["kinds"].items()
            ),
            _commit(record),
        )
        for record in _latest(records, "workload")
        if record["device_time"]
    ]
    return _table("workload | model | device | share of the GPU's time | commit", rows)


def kernel_table(records: list[Record]) -> list[str]:
    """Each case of the attention kernels' own record, in its fastest configuration."""
    fastest: dict[str, tuple[Record, str]] = {}
    for record in (record for record in records if record["kind"] == "kernels"):
        for result in record["results"]:
            best = fastest.get(result["case"])
            if best is None or result["median_microseconds"] < best[0]["median_microseconds"]:
                fastest[result["case"]] = (result, _commit(record))
    rows = [
        (
            case,
            ", ".join(f"{key} {value}" for key, value in (result["config"] or {}).items()) or "-",
            f"{result['median_microseconds']:.1f}",
            f"{result['tflops']:.0f} TFLOP/s"
            if "tflops" in result
            else f"{result['percent_of_4.3TBs']:.1f}% of 4.3 TB/s",
            commit,
        )
        for case, (result, commit) in fastest.items()
    ]
    return _table("case | configuration | us | reached | commit", rows)


TABLES: dict[str, Callable[[list[Record]], list[str]]] = {
    "workloads": workload_table,
    "starts": start_table,
    "device-time": device_time_table,
    "kernels": kernel_table,
    "transformers": transformers_table,
    "host": host_table,
    "start-up": start_up_table,
}


def _latest(records: list[Record], what: str) -> list[Record]:
    """The newest record of `what` for each kind, device and mesh, by kind."""
    newest: dict[tuple[Any, ...], Record] = {}
    for record in records:
        if what == record.get("kind") or (what == "workload" and "workload" in record):
            machine = record["machine"]
            newest[record["kind"], machine["device"], machine["cpu"], _parallel(record)] = record
    return [newest[key] for key in sorted(newest)]


def _parallel(record: Record) -> tuple[int, int]:
    """Replicas, and devices of each."""
    engine = record.get("engine", {})
    return engine.get("data_parallel_size", 1), engine.get("tensor_parallel_size", 1)


def _devices(record: Record) -> str:
    replicas, each = _parallel(record)
    text = f"{replicas * each} x {record['machine']['device']}"
    return text if replicas == 1 else f"{text}, {replicas} replicas"


def _table(header: str, rows: list[tuple[str, ...]]) -> list[str]:
    if not rows:
        return ["Not measured yet."]
    titles = header.split(" | ")
    return [
        f"| {header} |",
        "|" + "---|" * len(titles),
        *(f"| {' | '.join(row)} |" for row in rows),
    ]


def _commit(record: Record) -> str:
    commit = record["commit"] or "-"
    return commit[:7] + ("+" if commit.endswith("+changes") else "")


def _gigabytes(count: float | None) -> str:
    return "-" if count is None else f"{count / 1e9:.2f}"


def _share(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


if __name__ == "__main__":
    sys.exit(main())
