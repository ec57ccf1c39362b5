"""Measures decode steps of an engine that keeps activations, beside one that keeps none."""

import dataclasses
from typing import Any

from jaxinfer import LLM, Capture
from jaxinfer.measure.random_weights import build_engine, random_weights
from scripts.speed.batch_speeds import Speed, fitting_arguments, measure_speed
from scripts.speed.engine_report import heading
from scripts.speed.report import engine_record

_PROMPT_TOKENS = 512
_DECODE_STEPS = 64


def capture_report(
    model_shape: str | None, *, engine_arguments: dict[str, Any], rows: int, repeats: int
) -> dict[str, Any]:
    """Time decode steps: plain, with two layers' residual streams kept, and given to requests.

    Args:
        model_shape: random weights of this shape, or None for the model of `engine_arguments`.
        engine_arguments: what the user set.
        rows: sequences at once.
        repeats: counted runs of each.

    Returns:
        JSON-like values: seconds of a decode step of the "plain" engine; of one that keeps two
        layers, whose requests get nothing ("kept"), or all generated tokens' activations
        ("given"), and the ratios. "num_compilations" counts what was compiled while measuring.
    """
    own = fitting_arguments([rows], [_PROMPT_TOKENS], _DECODE_STEPS)
    options = {
        "rows": rows,
        "prompt_tokens": _PROMPT_TOKENS,
        "decode_steps": _DECODE_STEPS,
        "repeats": repeats,
    }
    with build_engine(model_shape, own | engine_arguments) as llm:
        cases = {"plain": measure_speed(llm, **options)}
        record, last = engine_record(llm, model_shape), llm.model_config.num_hidden_layers - 1
    layers = [last // 2, last]
    capture = Capture(layers=layers, tokens="generated")
    given = own | engine_arguments
    weights = random_weights(model_shape, given) if model_shape else {}
    with LLM(**weights, **given, capture=capture) as llm:
        cases["kept"] = measure_speed(llm, **options)
        llm.reset_prefix_cache()  # the same prompts follow
        cases["given"] = measure_speed(llm, **options, capture=True)
    return {
        **record,
        "rows": rows,
        "layers": layers,
        "cases": {name: _case(speed, cases["plain"]) for name, speed in cases.items()},
        "num_compilations": sum(speed.num_compilations for speed in cases.values()),
    }


def capture_lines(report: dict[str, Any]) -> list[str]:
    """The figures for people."""
    return [
        *heading(report),
        "",
        *(
            f"{name}: {case['decode_step_s'] * 1e3:.3f} ms a step of {report['rows']} rows, "
            f"{case['ratio']:.3f} of plain"
            for name, case in report["cases"].items()
        ),
    ]


def _case(speed: Speed, plain: Speed) -> dict[str, Any]:
    return {**dataclasses.asdict(speed), "ratio": speed.decode_step_s / plain.decode_step_s}
