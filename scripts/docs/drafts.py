"""The tables of docs/measurements/drafts.md, from the records of scripts/drafts_benchmark.py."""

from typing import Any

from jaxinfer.profiling.figures import share_text
from scripts.docs.tables import commit_of, latest, markdown_table, where

Record = dict[str, Any]


def texts_table(records: list[Record]) -> list[str]:
    """Given texts of random weights: times with drafts over times without."""
    rows = []
    for record in (each for each in latest(records, "drafts") if "texts" in each):
        for name, case in record["cases"].items():
            text, count = name.split(", ")
            plain, drafts = case["plain"], case["drafts"]
            rows.append(
                (
                    _model(record),
                    record["speculative_config"]["method"],
                    record["texts"][text],
                    count,
                    f"{plain['tpot_ms']:.2f}",
                    f"{drafts['tpot_ms'] / plain['tpot_ms']:.2f}",
                    f"{drafts['step_ms'] / plain['step_ms']:.2f}",
                    f"{1 + drafts['gained']:.2f}",
                    f"{drafts['tokens_per_s'] / plain['tokens_per_s']:.2f}",
                    *where(record),
                    commit_of(record),
                )
            )
    header = "model | method | answer | rows | TPOT ms, plain | TPOT | a step | tokens a step"
    return markdown_table(header + " | tokens/s | device | jax | commit", rows)


def crowd_table(records: list[Record]) -> list[str]:
    """W1 with drafts on."""
    rows = []
    for record in (each for each in latest(records, "drafts-crowd") if "W1" in each):
        seconds = record["W1"]
        rows.append(
            (
                _model(record),
                f"{seconds['plain']:.2f}",
                f"{seconds['drafts']:.2f}",
                f"{seconds['drafts'] / seconds['plain']:.3f}",
                *where(record),
                commit_of(record),
            )
        )
    header = "model | plain, s | with drafts, s | ratio | device | jax | commit"
    return markdown_table(header, rows)


def bundled_table(records: list[Record]) -> list[str]:
    """The bundled model's own answers: how much comes from drafts, and how much faster."""
    rows = []
    for record in latest(records, "drafts-groups"):
        for number, each in enumerate(record["rounds"], 1):
            plain, drafts = each["plain"], each["drafts"]
            speed = plain["seconds"] / drafts["seconds"]
            what = f"groups of {record['samples']} samples, round {number}"
            rows.append(_bundled_row(record, what, drafts["accepted"] / drafts["tokens"], speed))
    for record in latest(records, "drafts-answers"):
        for name, case in record["cases"].items():
            speed = case["seconds"]["plain"] / case["seconds"]["drafts"]
            share = case["accepted"] / case["tokens"]
            rows.append(_bundled_row(record, f"4 at once, {name}", share, speed))
    header = "method | answers | of the tokens from drafts | tokens/s | device | jax | commit"
    return markdown_table(header, rows)


def rounding_table(records: list[Record]) -> list[str]:
    """How many of the bundled model's answers differ, with drafts and in larger batches."""
    rows = []
    for record in latest(records, "drafts-answers"):
        for name, case in record["cases"].items():
            gaps = [gap for gaps in case["differences"].values() for gap in gaps if gap is not None]
            counts = [f"{len(gaps)} of {case['of']}" for gaps in case["differences"].values()]
            widest = f"{max(gaps, default=0):.4f}" if name.endswith(" 0.0") else "-"
            method = record["speculative_config"]["method"]
            rows.append((method, name, *counts, widest, *where(record), commit_of(record)))
    header = "method | sampling | with drafts | without, 32 at once | largest gap, nats"
    return markdown_table(header + " | device | jax | commit", rows)


def _bundled_row(record: Record, what: str, share: float, speed: float) -> tuple[str, ...]:
    method = record["speculative_config"]["method"]
    return (method, what, share_text(share), f"{speed:.2f}", *where(record), commit_of(record))


def _model(record: Record) -> str:
    return f"Qwen3-{record['kind'].rsplit('-', 1)[1]} shape"


DRAFT_TABLES = {
    "drafts-texts": texts_table,
    "drafts-crowd": crowd_table,
    "drafts-bundled": bundled_table,
    "drafts-rounding": rounding_table,
}
"""Makers of these tables, by name."""
