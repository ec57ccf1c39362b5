"""examples/distill.py runs, and its student comes nearer to the teacher."""

import importlib.util
from pathlib import Path

import jax
import pytest

FILE = Path(__file__).resolve().parents[1] / "examples" / "distill.py"


@pytest.mark.slow
def test_the_student_comes_nearer_to_its_teacher():
    spec = importlib.util.spec_from_file_location("distill", FILE)
    assert spec is not None
    assert spec.loader is not None
    distill = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(distill)
    with jax.numpy_dtype_promotion("standard"):  # optax's Adam adds floats to its count
        steps = list(distill.distill(4, distill.PROMPTS[:2], distill.HELD_OUT[:2], samples=2))
    assert [each.step for each in steps] == [0, 1, 2, 3, 4]
    assert steps[-1].kl < steps[0].kl
    assert all(each.text for each in steps)
