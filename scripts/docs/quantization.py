"""The tables of docs/quantization.md, of scripts/quantization_quality.py and of workloads."""

from typing import Any

from jaxinfer.profiling.figures import share_text
from scripts.docs.tables import commit_of, latest, markdown_table, where

Record = dict[str, Any]


def bundled_table(records: list[Record]) -> list[str]:
    """What each scheme changes of the bundled model, below the plain weights, by the last record.

    Of one machine, since the figures hardly depend on it.
    """
    rows = []
    for record in latest(records, "quantization")[-1:]:
        for name, figures in [("plain", record["plain"]), *record["schemes"].items()]:
            asked = record["questions"]
            rows.append(
                (
                    name if name == "plain" else f"`{name}`",
                    *_compared(figures),
                    f"{figures['right']} of {asked}",
                    f"{figures['same_replies']} of {asked}",
                    f"{figures['story_loss']:.4f}",
                    f"{figures['weight_bytes'] / 1e6:.2f} MB ({share_text(figures['weights'])})",
                    f"{figures['simulated_kl']:.3f}" if "simulated_kl" in figures else "-",
                    *where(record),
                    commit_of(record),
                )
            )
    header = "weights | KL mean | KL p99 | perplexity ratio | same top | right | same replies"
    header += " | story loss | bytes | simulation | device | jax | commit"
    return markdown_table(header, rows)


def smollm2_table(records: list[Record]) -> list[str]:
    """The same of SmolLM2, by the last record that has it; it answered no questions."""
    found = [record for record in latest(records, "quantization") if record["smollm2"]]
    rows = []
    for record in found[-1:]:
        for name, figures in record["smollm2"]["schemes"].items():
            compared = _compared(figures) if "kl_mean" in figures else ("does not fit", *["-"] * 3)
            rows.append((f"`{name}`", *compared, *where(record), commit_of(record)))
    header = "weights | KL mean | KL p99 | perplexity ratio | same top | device | jax | commit"
    return markdown_table(header, rows)


def speed_table(records: list[Record]) -> list[str]:
    """The last record of each workload by scheme and device, and plain weights at the same tree."""
    runs = [each for each in records if "workload" in each and "quantization" in each["engine"]]
    trees = {each["tree"] for each in runs if _formats(each) != "plain"}
    last = {_run_of(each): each for each in runs if each["tree"] in trees}
    rows = []
    for record in sorted(last.values(), key=_run_of):
        median = record["runs"]["cold"]["median"]
        tpot = median["tpot_s"]
        rows.append(
            (
                record["workload"],
                record["model"],
                _formats(record),
                "-" if tpot is None else f"{tpot * 1e3:.2f}",
                f"{median['output_tokens_per_s']:,.0f}",
                f"{median['prompt_tokens_per_s']:,.0f}",
                f"{record['start_up_s']:.0f}",
                *where(record),
                commit_of(record),
            )
        )
    header = "workload | model | weights | TPOT ms | output tok/s | prompt tok/s | start s"
    return markdown_table(header + " | device | jax | commit", rows)


def _run_of(record: Record) -> tuple[str, ...]:
    """What sets figures of the table apart."""
    formats = _formats(record).removeprefix("plain")  # comes first
    return record["workload"], record["model"], record["machine"]["device"], formats


def _formats(record: Record) -> str:
    """Of weights, and of the cache where it is another than the model's."""
    engine = record["engine"]
    weights = f"`{engine['quantization']}`" if engine["quantization"] else "plain"
    cache = engine.get("kv_cache_dtype", "auto")
    return weights if cache == "auto" else f"{weights}, `{cache}` cache"


def _compared(figures: Record) -> tuple[str, ...]:
    if "kl_mean" not in figures:
        return ("-",) * 4
    return (
        f"{figures['kl_mean']:.1e}",
        f"{figures['kl_p99']:.1e}",
        f"{figures['perplexity_ratio']:.5f}",
        share_text(figures["same_top_share"], 2),
    )


QUANTIZATION_TABLES = {
    "quantized bundled": bundled_table,
    "quantized smollm2": smollm2_table,
    "quantized speed": speed_table,
}
"""Makers of these tables, by name."""
