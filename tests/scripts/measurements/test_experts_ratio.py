"""Two engines are timed in turns, and their steps compared turn by turn."""

import itertools

import pytest

from scripts.measurements import experts_ratio
from scripts.measurements.experts_ratio import DENSE, EXPERTS, compare, experts_lines
from scripts.speed.batch_speeds import Speed


def test_the_ratio_is_the_median_of_the_turns_quotients(monkeypatch):
    asked = []
    seconds = itertools.cycle([0.010, 0.012, 0.020, 0.020, 0.010, 0.030])  # dense, experts, ...

    def measure(llm, *, rows, prompt_tokens, decode_steps, repeats):
        asked.append(llm)
        return Speed(
            rows=rows,
            prompt_tokens=prompt_tokens,
            decode_steps=decode_steps,
            prefill_s=1.0,
            decode_step_s=next(seconds),
            spread=1.0,
            num_compilations=1,
        )

    monkeypatch.setattr(experts_ratio, "measure_speed", measure)
    size = compare({DENSE: "dense", EXPERTS: "experts"}, rows=8, turns=3)
    assert asked == ["dense", "experts"] * 3
    assert size["step_ms"] == {DENSE: [10.0, 20.0, 10.0], EXPERTS: [12.0, 20.0, 30.0]}
    assert size["ratio"] == pytest.approx(1.2)
    assert size["num_compilations"] == 6
    lines = experts_lines({"sizes": [size], "limit": 1.5})
    assert lines[1:] == ["    8 rows  20.00 and 10.00 ms, ratio 1.20"]
