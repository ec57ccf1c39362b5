"""Compares a decode step of the bundled model with experts with one of the dense bundled model.

Both are of one size, and a token goes through a quarter of the experts' parameters. One engine of
each, in one process, in turns: whatever else the machine does falls on both.
"""

import contextlib
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from scripts.speed.batch_speeds import fitting_arguments, measure_speed

if TYPE_CHECKING:
    from jaxinfer import LLM

DENSE, EXPERTS = "bundled", "bundled-experts"
BATCH_SIZES = (1, 8, 64)
_PROMPT_TOKENS, _DECODE_STEPS = 64, 64
_LIMIT = 1.5


def experts_report(repeats: int) -> dict[str, Any]:
    """Time both models in turn, at each of `BATCH_SIZES`; see `compare`.

    Returns:
        "sizes": of each batch size, every turn's milliseconds of a step, and the ratio.
    """
    from jaxinfer import LLM

    wanted = fitting_arguments(BATCH_SIZES, [_PROMPT_TOKENS], _DECODE_STEPS)
    # A size's prompts come again in every turn.
    wanted |= {"enable_prefix_caching": False, "show_progress": False}
    with contextlib.ExitStack() as stack:
        llms = {name: stack.enter_context(LLM(name, **wanted)) for name in (DENSE, EXPERTS)}
        sizes = [compare(llms, rows, repeats) for rows in BATCH_SIZES]
    return {
        "prompt_tokens": _PROMPT_TOKENS,
        "decode_steps": _DECODE_STEPS,
        "sizes": sizes,
        "limit": _LIMIT,
        "num_compilations": sum(size["num_compilations"] for size in sizes),
    }


def compare(llms: "Mapping[str, LLM]", rows: int, turns: int) -> dict[str, Any]:
    """Milliseconds of a decode step of two engines, in turns.

    Args:
        llms: by name, `DENSE` and `EXPERTS`.
        rows: sequences at once.
        turns: of both, each timed once behind a run that is not counted.

    Returns:
        "step_ms" by name, a number a turn; and "ratio", the median of the turns' quotients.
    """
    step_ms: dict[str, list[float]] = {name: [] for name in llms}
    compiled = 0
    for _ in range(turns):
        for name, llm in llms.items():
            speed = measure_speed(
                llm,
                rows=rows,
                prompt_tokens=_PROMPT_TOKENS,
                decode_steps=_DECODE_STEPS,
                repeats=1,
            )
            step_ms[name].append(speed.decode_step_s * 1e3)
            compiled += speed.num_compilations
    quotients = [one / other for one, other in zip(step_ms[EXPERTS], step_ms[DENSE], strict=True)]
    return {
        "rows": rows,
        "step_ms": step_ms,
        "ratio": statistics.median(quotients),
        "num_compilations": compiled,
    }


def experts_lines(report: Mapping[str, Any]) -> list[str]:
    """The report for people."""
    sizes: Sequence[Mapping[str, Any]] = report["sizes"]
    return [
        f"a decode step of {EXPERTS} and of {DENSE} (limit of the ratio: {report['limit']})",
        *(
            f"  {size['rows']:>3} rows  {_median_ms(size, EXPERTS)} and {_median_ms(size, DENSE)} "
            f"ms, ratio {size['ratio']:.2f}"
            for size in sizes
        ),
    ]


def _median_ms(size: Mapping[str, Any], name: str) -> str:
    return f"{statistics.median(size['step_ms'][name]):.2f}"
