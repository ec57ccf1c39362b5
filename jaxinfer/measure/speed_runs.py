"""Measures prefill and decode speed over batch sizes and prompt lengths, on one engine."""

from collections.abc import Sequence
from typing import Any

from jaxinfer.measure.models.engines import build_engine
from jaxinfer.measure.report import describe_engine, speed_record
from jaxinfer.measure.timing import measure_speed


def measure_speeds(
    batch_sizes: Sequence[int],
    prompt_lengths: Sequence[int],
    *,
    decode_steps: int,
    repeats: int,
    model_shape: str | None,
    engine_arguments: dict[str, Any],
) -> dict[str, Any] | None:
    """Measure every batch size with every prompt length.

    Args:
        batch_sizes: sequences at once.
        prompt_lengths: tokens of each prompt.
        decode_steps: steps that decoding is timed over.
        repeats: counted runs of each; one that is not counted goes first and compiles its shapes.
        model_shape: random weights of this shape, or None for the model of `engine_arguments`.
        engine_arguments: what the user set; the rest fits the largest batch.

    Returns:
        JSON-like values: engine and machine, and "speeds", a row for each pair.
        "num_compilations" counts what the repeats compiled: figures stand only when it is 0. None
        on processes that follow process 0.
    """
    defaults = {
        "compile_ahead": False,  # the rows' own shapes are warmed, no others
        "max_num_seqs": max(batch_sizes),
        "max_model_len": max(prompt_lengths) + decode_steps + 1,
    }
    with build_engine(model_shape, defaults | engine_arguments) as llm:
        if llm.follows:
            llm.follow()
            return None
        speeds = [
            measure_speed(
                llm,
                rows=rows,
                prompt_tokens=length,
                decode_steps=decode_steps,
                repeats=repeats,
                vocab_size=llm.model_config.vocab_size,
            )
            for length in prompt_lengths
            for rows in batch_sizes
        ]
        return {
            **describe_engine(llm, model_shape),
            "repeats": repeats,
            "num_compilations": sum(speed.num_compilations for speed in speeds),
            "speeds": [speed_record(llm, speed) for speed in speeds],
        }
