"""The table of docs/measurements/embeddings.md, from records of scripts/embedding_benchmark.py."""

from typing import Any

from jaxinfer.profiling.figures import share_text
from scripts.docs.tables import commit_of, latest, markdown_table, where

Record = dict[str, Any]


def embedding_table(records: list[Record]) -> list[str]:
    """Prompt tokens a second of embedding and of W3, and starts, of the latest record of each."""
    rows = []
    for record in latest(records, "embeddings"):
        floor, start = record["floor_s"], record["start"]
        rows.append(
            (
                record["model"],
                f"{record['texts']} of {record['text_tokens']}",
                f"{record['prompt_tokens_per_s']:,.0f}",
                f"{record['w3_prompt_tokens_per_s']:,.0f}",
                f"{record['ratio']:.2f}",
                "-" if floor is None else share_text(floor / record["seconds"]),
                f"{record['spread']:.3f}",
                str(record["num_programs"]),
                "-" if start is None else f"{start['cold_median_s']:.1f}",
                "-" if start is None else f"{start['warm_median_s']:.1f}",
                *where(record),
                commit_of(record),
            )
        )
    if not rows:
        return ["Not measured yet."]
    header = (
        "model | texts | embedding, prompt tok/s | W3, prompt tok/s | ratio | of floor | spread"
    )
    header += " | programs | start, caches empty s | filled s | device | jax | commit"
    return markdown_table(header, rows)


EMBEDDING_TABLES = {"embeddings": embedding_table}
"""Makers of these tables, by name."""
