"""The examples run, and their figures are real."""

import csv
import importlib.util
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def _load(name):
    spec = importlib.util.spec_from_file_location(f"examples_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["distill", "grpo", "lora_grpo"])
def test_without_optax_an_example_ends_in_one_line(name, monkeypatch):
    monkeypatch.setitem(sys.modules, "optax", None)
    with pytest.raises(SystemExit, match=r"^this example needs optax: pip install optax$"):
        _load(name)


@pytest.fixture(scope="module")
def grpo():
    return _load("grpo")


def test_grpo_rewards_four_sentences_exactly(grpo):
    assert grpo.reward("One. Two! Three? Four.") == 1
    assert grpo.reward("One. Two. Three") == 0
    assert grpo.reward("1. 2. 3. 4. 5.") == 0


def test_grpo_compares_rewards_within_a_prompt(grpo):
    rewards = np.array([0, 1, 1, 1], np.float32)
    np.testing.assert_allclose(grpo.advantages(rewards, 2), [-1, 1, 0, 0], atol=1e-3)


@pytest.mark.slow("each")
def test_grpo_trains_on_what_it_measures(grpo, tmp_path):
    lines = []
    with jax.numpy_dtype_promotion("standard"):  # as a user has it, and as Adam of optax needs
        steps = grpo.train(num_steps=4, n=8, learning_rate=1e-3, say=lines.append)
    assert [line.split()[1] for line in lines] == ["1", "2", "3", "4"]
    assert all(0 <= step.reward <= 1 and 0 < step.entropy < np.log(2048) for step in steps)
    assert all(0 < step.length <= grpo.MAX_TOKENS for step in steps)
    # The engine has the trainer's weights at every step: older ones differ by far more.
    assert all(0 < step.gap < 1e-4 for step in steps)
    assert steps[-1].reward > steps[0].reward
    grpo.save(steps, tmp_path / "run")
    with (tmp_path / "run.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["reward"]) for row in rows] == [step.reward for step in steps]
    assert {path.suffix for path in tmp_path.iterdir()} in ({".csv", ".png"}, {".csv", ".txt"})


def test_grpo_draws_curves_in_text(grpo):
    text = grpo.text_plot("reward", [0.0, 0.5, 1.0], height=3)
    assert text.splitlines() == ["reward: 0 to 1, 3 steps", "  *", " * ", "*  "]


@pytest.mark.slow("each")
def test_lora_grpo_trains_the_adapter_that_the_engine_has():
    lora_grpo, lines = _load("lora_grpo"), []
    with jax.numpy_dtype_promotion("standard"):  # as a user has it, and as Adam of optax needs
        steps = lora_grpo.train(num_steps=4, n=8, learning_rate=1e-2, say=lines.append)
    # The engine has the trainer's adapter at every step: older ones differ by far more.
    assert all(0 < step.gap < 1e-4 for step in steps)
    assert steps[-1].reward > steps[0].reward > 0
    assert lines[0] == "the model has 14.0 MB"
    assert all("moved 304 KB" in line for line in lines[1:])
    assert [line.split()[1] for line in lines[1:]] == ["1", "2", "3", "4"]


def test_lora_grpo_compares_rewards_within_a_prompt():
    rewards = np.array([0, 1, 1, 1], np.float32)
    np.testing.assert_allclose(_load("lora_grpo").advantages(rewards, 2), [-1, 1, 0, 0], atol=1e-3)


@pytest.mark.slow("each")
def test_steering_moves_stories_to_an_island(tmp_path, capsys):
    steering = _load("steering")
    effect = steering.main(tmp_path / "steering.png")
    assert effect.accuracy.min() > 0.9
    assert (effect.share[:, 0] == 0).all()
    assert effect.share[-1, -1] == 1
    assert (np.diff(effect.share[-2:], axis=1) >= 0).all()
    assert "layer 3: probe 100 %, islands 0 %" in capsys.readouterr().out
