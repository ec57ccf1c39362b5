"""The tables of docs/adapters.md and research.md, from scripts/research_benchmark.py's records."""

from typing import Any

from scripts.docs.tables import commit_of, latest, markdown_table, where

Record = dict[str, Any]

_CASES = {
    "plain": "an engine without adapters",
    "none": "requests have none",
    "one": "all have the same",
    "mixed": "all in turn",
}


def adapter_table(records: list[Record]) -> list[str]:
    """W1 by the adapters that its requests have, of the latest record of each shape."""
    rows = [
        (
            record["model"],
            f"{record['num_adapters']} of rank {record['rank']}",
            words,
            f"{record['cases'][case]['seconds']:.2f}",
            f"{record['cases'][case]['output_tokens_per_s']:,.0f}",
            f"{record['cases'][case]['ratio']:.3f}",
            f"{record['cases'][case]['spread']:.3f}",
            f"{record['update_s'] * 1e3:.0f}",
            *where(record),
            commit_of(record),
        )
        for record in latest(records, "adapters")
        for case, words in _CASES.items()
        if case in record["cases"]  # One engine has requests of none in the plain one's place.
    ]
    header = "model | adapters | W1's requests | s | output tok/s | of the plain time | spread"
    header += " | update, ms | device | jax | commit"
    return markdown_table(header, rows) if rows else ["Not measured yet."]


def capture_table(records: list[Record]) -> list[str]:
    """Decode steps of an engine that keeps two layers, of the latest record of each shape."""
    rows = [
        (
            record["model"],
            str(record["rows"]),
            *(f"{record['cases'][case]['decode_step_s'] * 1e3:.3f}" for case in _KEPT),
            *(f"{record['cases'][case]['ratio']:.3f}" for case in _KEPT[1:]),
            *where(record),
            commit_of(record),
        )
        for record in latest(records, "capture")
    ]
    header = "model | rows | plain, ms | kept, ms | given, ms | kept of plain | given of plain"
    header += " | device | jax | commit"
    return markdown_table(header, rows) if rows else ["Not measured yet."]


_KEPT = ("plain", "kept", "given")

RESEARCH_TABLES = {"adapters": adapter_table, "captures": capture_table}
"""Makers of these tables, by name."""
