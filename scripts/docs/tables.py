"""The tables of docs/performance.md, made from the records in benchmarks/results/."""

import re
import statistics
from collections.abc import Callable, Mapping
from typing import Any

from jaxinfer.profiling.figures import share_text
from jaxinfer.profiling.memory.holdings import OWNERS
from scripts.docs.targets import TARGETS, num_devices
from scripts.kernels.runs import reached
from scripts.measurements.results import is_of_a_variant

Record = dict[str, Any]


def target_table(records: list[Record]) -> list[str]:
    """Targets, figures reached, and other engines' figures on the same machine."""
    rows = []
    for target in TARGETS:
        found = target.reached(records)
        value, share = (None, None) if found is None else (found[0], target.share(found[0]))
        rows.append(
            (
                target.figure,
                f"Qwen3-{target.shape}",
                _figure(target.aim),
                "not measured" if value is None else _figure(value),
                "-" if share is None else share_text(share),
                _figure(target.vllm),
                _figure(target.nano_vllm),
                *(("-", "-") if found is None else (_jax(found[1]), commit_of(found[1]))),
            )
        )
    header = "figure | model shape | target | reached | of target | vLLM 0.26.0 | nano-vLLM + FA3"
    return markdown_table(header + " | jax | commit", rows)


_WORKLOADS = {
    "W1": "256 requests",
    "W2": "one request",
    "W3": "16 prompts of 2,048",
    "W4": "64 prompts with one prefix",
    "W5": "32 prompts, 16 samples each",
    "W5-long": "8 prompts of 4,096, 32 samples each",
}


def speed_table(records: list[Record]) -> list[str]:
    """The figures that vLLM has too, for README: the engine's beside those of others."""
    rows = []
    for target in TARGETS:
        found = target.reached(records)
        if target.vllm is None or found is None:
            continue
        workload, _, figure = target.figure.partition(" ")
        words = f"{_WORKLOADS[workload]}: {figure}" if workload in _WORKLOADS else target.figure
        others = (_figure(target.vllm), _figure(target.nano_vllm))
        rows.append(
            (words, target.shape.upper(), f"**{_figure(found[0])}**", *others, _jax(found[1]))
        )
    return markdown_table(
        "Qwen3 in bfloat16 | shape | jaxinfer | vLLM 0.26.0 | nano-vLLM + FA3 | jax", rows
    )


def workload_table(records: list[Record]) -> list[str]:
    """The latest record of each workload, model, device, number of devices and version of JAX."""
    rows = []
    for record in latest(records, "workload"):
        for kind, run in record["runs"].items():
            median, floor = run["median"], run["floor"]
            tpot, clocks = median["tpot_s"], record.get("clocks")
            rows.append(
                (
                    record["workload"] + (f" {kind}" if len(record["runs"]) > 1 else ""),
                    record["model"],
                    _device(record),
                    _jax(record),
                    record["attention_backend"],
                    f"{median['seconds']:.3f}",
                    f"{median['output_tokens_per_s']:,.0f}",
                    f"{median['prompt_tokens_per_s']:,.0f}",
                    f"{median['ttft_s'] * 1e3:.1f}",
                    "-" if tpot is None else f"{tpot * 1e3:.3f}",
                    _share(floor and floor["total_s"] / median["seconds"]),
                    _share(floor and floor["total_shared_s"] / median["seconds"]),
                    f"{run['spread']:.3f}",
                    _cached(run),
                    f"{clocks['sm_mhz']:,.0f}" if clocks else "-",
                    str(record["num_compilations"]),
                    commit_of(record),
                )
            )
    header = "workload | model | device | jax | attention | s | output tok/s | prompt tok/s"
    header += " | TTFT ms | TPOT ms | of floor | of shared floor | spread | cached | MHz"
    return markdown_table(header + " | compiled | commit", rows)


def _cached(run: Record) -> str:
    """The share of prompt tokens that came from the prefix cache, the largest of all repeats."""
    return share_text(max(r["num_cached_tokens"] / r["num_prompt_tokens"] for r in run["repeats"]))


def gpu_check_table(records: list[Record]) -> list[str]:
    """The results of the last quick GPU check, below its machine."""
    checks = [record for record in records if record["kind"] == "gpu-check"][-1:]
    if not checks:
        return ["Not measured yet."]
    (check,) = checks
    machine = check["machine"]
    ran = f"{machine['num_devices']} x {machine['device']}, driver {machine['driver']}, "
    ran += f"jax {_jax(check)}"
    passed = " and ".join(each["jax"] for each in check.get("passed_on", []))
    lines = [
        f"Source tree `{check['tree'][:12]}` of `jaxinfer/`, {ran}, {check['time'][:10]}, "
        f"{check['seconds']:.0f} s." + (f" Passed on jax {passed}." if passed else ""),
        "",
    ]
    rows = [(row["name"].strip(), row["what"], _verdict(row)) for row in check["rows"]]
    return lines + markdown_table("check | seen | verdict", rows)


def _verdict(row: Record) -> str:
    return "good" if row["good"] else "BAD"


def exhaustive_table(records: list[Record]) -> list[str]:
    """The last run of the exhaustive tests, below the source tree that it ran."""
    runs = [record for record in records if record["kind"] == "exhaustive"][-1:]
    if not runs:
        return ["Not measured yet."]
    (run,) = runs
    outcomes = {name: sum(row[name] for row in run["files"]) for name in ("passed", "failed")}
    skipped = [f"{count} skipped ({reason})" for reason, count in run["skipped"].items()]
    counts = [f"{outcomes['passed']} passed", f"{outcomes['failed']} failed", *skipped]
    lines = [
        f"Source tree `{run['tree'][:12]}` of `jaxinfer/`, jax {_jax(run)}, {run['time'][:10]}: "
        + "; ".join(counts)
        + ".",
        "",
    ]
    rows = [
        (
            row["file"].removeprefix("tests/").removesuffix(".py"),
            *(str(row[name]) for name in ("passed", "failed", "skipped")),
            f"{row['seconds'] / 60:.1f}",
        )
        for row in run["files"]
    ]
    return lines + markdown_table("tests | passed | failed | skipped | minutes", rows)


def start_table(records: list[Record]) -> list[str]:
    """Engine start and memory of the latest record of each workload."""
    rows = [
        (
            record["workload"],
            record["model"],
            _device(record),
            _jax(record),
            f"{record['start_up_s']:.1f}",
            str(record["compiled_at_start"]),
            str(record.get("found_in_cache", "-")),
            _gigabytes(record["memory"]["kv_bytes"]),
            _share(record["memory"]["kv_share"]),
            _gigabytes(record["memory"]["peak_bytes"]),
            _gigabytes(record["memory"].get("other_bytes")),
            commit_of(record),
        )
        for record in latest(records, "workload")
    ]
    header = "workload | model | device | jax | start to ready s | programs | found in cache"
    return markdown_table(header + " | KV GB | KV share | peak GB | unplanned GB | commit", rows)


def engine_start_table(records: list[Record]) -> list[str]:
    """`LLM(...)` to ready, measured alone, of the latest record of each model."""
    rows = []
    for record in latest(records, "engine-start"):
        given = ", ".join(f"{name} {value}" for name, value in record["engine"].items())
        rows.append(
            (
                record["model"],
                record["machine"]["device"],
                _jax(record),
                str(record["machine"]["cpu_cores"]),
                given or "default",
                str(record["cold"][0]["num_programs"]),
                f"{record['cold_median_s']:.1f}",
                f"{record['warm_median_s']:.1f}",
                commit_of(record),
            )
        )
    header = "model | device | jax | cores | arguments | programs | caches empty s"
    return markdown_table(header + " | caches filled s | commit", rows)


# vLLM 0.26.0 on an H200, by model shape and requests a second (None: all at once), with prompts and
# answers as long: output tok/s; mean and p99 ms to the first token and per token after it.
_VLLM_SERVING: Mapping[tuple[str, float | None], tuple[str, str, str]] = {
    ("0.6b", None): ("10,296", "-", "-"),
    ("0.6b", 20.0): ("-", "52.7 / 94", "4.6 / 7.0"),
    ("0.6b", 40.0): ("-", "62.7 / 122", "6.6 / 12.8"),
    ("8b", None): ("5,394", "-", "-"),
    ("8b", 10.0): ("-", "73 / 143", "7.8 / 11.6"),
    ("8b", 20.0): ("-", "101 / 155", "12.6 / 16.6"),
}


def serving_table(records: list[Record]) -> list[str]:
    """A server under loads, the latest record of each, beside vLLM's."""
    rows = []
    for record, load, arrivals in _latest_loads(records):
        rate, shape = load["request_rate"], record["kind"].removeprefix("serving-")
        speed, first, each = _VLLM_SERVING.get((shape, rate), ("-", "-", "-"))
        offline = "-" if rate else _figure(record["offline"]["output_tokens_per_s"])
        rows.append(
            (
                " ".join([record["model"], *record["flags"]]),
                record["machine"]["device"],
                _jax(record),
                arrivals,
                f"{load['output_tokens_per_s']:,.0f}",
                offline,
                _mean_and_p99(load["ttft_ms"]),
                _mean_and_p99(load["tpot_ms"]),
                *(speed, first, each),
                commit_of(record),
            )
        )
    header = "model | device | jax | arrivals | output tok/s | `LLM.generate` | TTFT ms | TPOT ms"
    return markdown_table(header + " | vLLM 0.26.0: tok/s | TTFT ms | TPOT ms | commit", rows)


def _latest_loads(records: list[Record]) -> list[tuple[Record, Record, str]]:
    """Of each model, device, version of JAX, set of flags and load: record, figures, arrivals."""
    found = {}
    for record in records:
        if not record["kind"].startswith("serving-"):
            continue
        for load in record["loads"]:
            rate = load["request_rate"]
            arrivals = f"{load['num_prompts']:,} at once" if rate is None else f"{rate:g} a second"
            key = (record["kind"], *_machine(record), *record["flags"], rate, arrivals)
            found[key] = (record, load, arrivals)
    return list(found.values())


def _mean_and_p99(summary: Mapping[str, float]) -> str:
    return f"{_figure(summary['mean'])} / {_figure(summary['p99'])}"


def transformers_table(records: list[Record]) -> list[str]:
    """Output tokens a second beside transformers, the latest on each machine."""
    rows = [
        (
            record["machine"]["cpu"],
            str(record["machine"]["cpu_cores"]),
            _jax(record),
            f"{statistics.median(record['output_tokens_per_s']):,.0f}",
            f"{statistics.median(record['transformers_output_tokens_per_s']):,.0f}",
            f"{record['ratio']:.2f}",
            commit_of(record),
        )
        for record in latest(records, "compare-transformers")
    ]
    header = "processor | cores | jax | jaxinfer tok/s | transformers tok/s | ratio | commit"
    return markdown_table(header, rows)


def experts_table(records: list[Record]) -> list[str]:
    """A decode step of the bundled model with experts beside the dense one's, on each machine."""
    rows = [
        (
            record["machine"]["cpu"],
            str(record["machine"]["cpu_cores"]),
            _jax(record),
            str(size["rows"]),
            *(f"{statistics.median(ms):.2f}" for ms in size["step_ms"].values()),
            f"{size['ratio']:.2f}",
            commit_of(record),
        )
        for record in latest(records, "compare-experts")
        for size in record["sizes"]
    ]
    header = "processor | cores | jax | sequences | dense ms | experts ms | ratio | commit"
    return markdown_table(header, rows)


def host_table(records: list[Record]) -> list[str]:
    """Host time per decode step beside longer and longer queues."""
    rows = [
        (
            record["machine"]["cpu"],
            _jax(record),
            f"{queue['waiting']:,}",
            f"{queue['finished']:,}",
            f"{queue['schedule_us']:.1f}",
            f"{queue['batch_us']:.1f}",
            f"{queue['schedule_and_batch_us']:.1f}",
            commit_of(record),
        )
        for record in latest(records, "host-cost")
        for queue in record["queues"]
    ]
    header = "processor | jax | waiting | finished | schedule us | batch us | together us | commit"
    return markdown_table(header, rows)


def start_up_table(records: list[Record]) -> list[str]:
    """Process start to first token on the bundled model."""
    rows = [
        (
            record["machine"]["cpu"],
            record["machine"]["device"],
            _jax(record),
            f"{record['cold_median_s']:.2f}",
            f"{record['warm_median_s']:.2f}",
            commit_of(record),
        )
        for record in latest(records, "start-up")
    ]
    return markdown_table(
        "processor | device | jax | cache empty s | cache filled s | commit", rows
    )


def device_time_table(records: list[Record]) -> list[str]:
    """What the GPU's time went into, for the latest profiled record of each workload."""
    rows = [
        (
            record["workload"],
            record["model"],
            _device(record),
            _jax(record),
            ", ".join(
                f"{kind} {share_text(share, 1)}"
                for kind, share in record["device_time"]["kinds"].items()
            ),
            commit_of(record),
        )
        for record in latest(records, "workload")
        if record["device_time"]
    ]
    return markdown_table(
        "workload | model | device | jax | share of the GPU's time | commit", rows
    )


def kernel_table(records: list[Record]) -> list[str]:
    """Each case on each machine, from the newest record that has it, in its fastest configuration.

    A machine is a device with a version of JAX.
    """
    newest: dict[tuple[Any, ...], tuple[Record, Record]] = {}
    for record in (record for record in records if record["kind"] == "kernels"):
        for case, result in _fastest(record).items():
            newest[*_machine(record), case] = record, result
    rows = [
        (result["case"], *where(record), *_kernel_cells(result), commit_of(record))
        for record, result in newest.values()
    ]
    return markdown_table("case | device | jax | configuration | us | reached | commit", rows)


def backend_table(records: list[Record]) -> list[str]:
    """Implementations of attention side by side, of the newest record on each machine."""
    rows = [
        (
            result["case"],
            *where(record),
            result["backend"],
            *_kernel_cells(result)[1:],
            commit_of(record),
        )
        for record in latest(records, "attention-backends")
        for result in record["results"]
    ]
    return markdown_table("case | device | jax | implementation | us | reached | commit", rows)


def _fastest(record: Record) -> dict[str, Record]:
    """By case."""
    fastest: dict[str, Record] = {}
    timed = [result for result in record["results"] if "error" not in result]
    for result in timed:
        best = fastest.setdefault(result["case"], result)
        if result["median_microseconds"] < best["median_microseconds"]:
            fastest[result["case"]] = result
    return fastest


def _kernel_cells(result: Record) -> tuple[str, str, str]:
    config = ", ".join(f"{key} {value}" for key, value in (result["config"] or {}).items())
    if "error" in result:
        return config, "-", result["error"]
    return config or "own choice", f"{result['median_microseconds']:.1f}", reached(result)


def batch_table(records: list[Record]) -> list[str]:
    """Speed and share of the floor over batch sizes, of the latest record of each model."""
    rows = [
        (
            record["model"],
            _device(record),
            _jax(record),
            str(speed["rows"]),
            str(speed["prompt_tokens"]),
            f"{speed['prefill_tokens_per_s']:,.0f}",
            _share(speed["prefill_of_floor"]),
            f"{speed['decode_step_s'] * 1e3:.3f}",
            f"{speed['decode_tokens_per_s']:,.0f}",
            _share(speed["decode_of_floor"]),
            commit_of(record),
        )
        for record in latest(records, "batches")
        for speed in record["speeds"]
    ]
    header = "model | device | jax | sequences | prompt | prefill tok/s | of floor"
    return markdown_table(header + " | decode ms/step | decode tok/s | of floor | commit", rows)


def memory_table(records: list[Record]) -> list[str]:
    """What each owner holds in each phase, of the newest record of each model and machine."""
    rows, found = [], latest(records, "memory")
    for record in found:
        for phase in record["report"]["phases"]:
            held = {each["owner"]: each for each in phase["holdings"]}
            rows.append(
                (
                    record["model"],
                    _device(record),
                    _jax(record),
                    phase["name"],
                    *(_held(held.get(owner)) for owner in OWNERS),
                    _megabytes(phase["num_bytes"]),
                    commit_of(record),
                )
            )
    lines = markdown_table(
        f"model | device | jax | phase | {' | '.join(OWNERS)} | all | commit", rows
    )
    if not any("H200" in record["machine"]["device"] for record in found):
        command = "`python scripts/benchmark.py --memory --model-shape 8b`"
        lines += ["", f"Not recorded on an H200 yet: {command} on one adds its rows here."]
    return lines


def _held(holding: Mapping[str, Any] | None) -> str:
    if holding is None:
        return "-"
    marks = {"arrays": "", "compiler": " (compiler)", "measured": " (measured)"}
    return _megabytes(holding["num_bytes"]) + marks[holding["source"]]


def _megabytes(count: float) -> str:
    return f"{count / 1e6:,.1f}"


TABLES: dict[str, Callable[[list[Record]], list[str]]] = {
    "targets": target_table,
    "speed": speed_table,
    "workloads": workload_table,
    "batches": batch_table,
    "engine-starts": engine_start_table,
    "starts": start_table,
    "gpu-check": gpu_check_table,
    "exhaustive": exhaustive_table,
    "device-time": device_time_table,
    "kernels": kernel_table,
    "backends": backend_table,
    "transformers": transformers_table,
    "experts": experts_table,
    "host": host_table,
    "start-up": start_up_table,
    "serving": serving_table,
    "memory": memory_table,
}


def latest(records: list[Record], what: str) -> list[Record]:
    """The newest record of `what` for each kind, device, parallelism and minor version of JAX.

    They are ordered by these. Patch releases of a minor version, such as 0.11, count as one.

    Args:
        records: the oldest first.
        what: a kind, or the beginning of one that ends with the model ("batches-0.6b"); "workload"
            for all workloads.
    """
    newest: dict[tuple[Any, ...], Record] = {}
    for record in records:
        if is_of_a_variant(record):
            continue
        kind, machine = record["kind"], record["machine"]
        if kind == what or kind.startswith(f"{what}-") or (what == "workload" and what in record):
            # A GPU's figures are its own; every CPU's device is called "cpu".
            device = machine["cpu"] if machine["device"] == "cpu" else machine["device"]
            newest[kind, device, *_parallelism(record), _minor_version(record)] = record
    return [newest[key] for key in sorted(newest)]


def _jax(record: Record) -> str:
    """The version of JAX that the figures were taken with."""
    return record["machine"].get("versions", {}).get("jax", "-")


def _minor_version(record: Record) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", _jax(record))[:2])


def _machine(record: Record) -> tuple[Any, ...]:
    """What sets figures of one kind apart: the device, and the minor version of JAX."""
    return record["machine"]["device"], _minor_version(record)


def where(record: Record) -> tuple[str, str]:
    """Device and version of JAX."""
    return record["machine"]["device"], _jax(record)


def _parallelism(record: Record) -> tuple[int, ...]:
    engine = record.get("engine", {})
    kinds = ("tensor", "data", "pipeline", "context")
    return tuple(engine.get(f"{kind}_parallel_size", 1) for kind in kinds)


def _device(record: Record) -> str:
    tensor, data, *_ = _parallelism(record)
    both = f" ({tensor} tensor x {data} data)" if data > 1 else ""
    return f"{num_devices(record)} x {record['machine']['device']}{both}"


def markdown_table(header: str, rows: list[tuple[str, ...]]) -> list[str]:
    """Lines of a table; `header` has " | " between its titles."""
    if not rows:
        return ["Not measured yet."]
    titles = header.split(" | ")
    return [
        f"| {header} |",
        "|" + "---|" * len(titles),
        *(f"| {' | '.join(row)} |" for row in rows),
    ]


def commit_of(record: Record) -> str:
    """A record's commit, short, with a plus if there were changes."""
    commit = record["commit"] or "-"
    return commit[:7] + ("+" if commit.endswith("+changes") else "")


def _figure(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _gigabytes(count: float | None) -> str:
    return "-" if count is None else f"{count / 1e9:.2f}"


def _share(share: float | None) -> str:
    return "-" if share is None else share_text(share)
