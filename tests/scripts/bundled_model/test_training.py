"""Training and judging by the plain forward, on models small enough to train in a test."""

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tokenizers import Tokenizer

from jaxinfer.model.checkpoint.weights import load_params
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.modules import init_params
from jaxinfer.model.text.tokenizer import Tokenizer as EngineTokenizer
from jaxinfer.serving.compile.cache.persistent_cache import persistent_cache
from scripts.bundled_model import assets
from scripts.bundled_model.__main__ import choose_schedule, parse_arguments
from scripts.bundled_model.assets import write_model
from scripts.bundled_model.config import SCHEDULES, Phase, Schedule, model_config
from scripts.bundled_model.corpus import Example
from scripts.bundled_model.greedy import answer
from scripts.bundled_model.rendering import TEMPLATE
from scripts.bundled_model.training import batches_of, train, weighted_loss
from scripts.evaluation.rates import Question, questions, rates

TINY = dataclasses.replace(
    model_config(64, (1,), 0),
    hidden_size=16,
    intermediate_size=16,
    num_hidden_layers=1,
    head_dim=8,
    dtype="float32",
)
SCHEDULE = Schedule(
    num_items=0,
    phases=(Phase(50, 4, 16),),
    learning_rate=1e-2,
    warmup=2,
    compute_dtype="float32",
    num_questions=0,
)


def counting_examples() -> list[Example]:
    """Runs of consecutive numbers: learned in a few steps."""
    return [
        Example(np.arange(i, i + 8, dtype=np.int32), np.ones(8, np.float32)) for i in range(2, 50)
    ]


def train_tiny(schedule: Schedule = SCHEDULE, max_seconds: float = 60.0):
    with jax.numpy_dtype_promotion("standard"):  # optax mixes dtypes
        return train(TINY, schedule, counting_examples(), pad_id=0, seed=0, max_seconds=max_seconds)


# One program for all tests; one operation at a time takes many times as long to compile.
loss_of = jax.jit(weighted_loss, static_argnums=1)


def held_loss(params) -> float:
    token_ids = jnp.arange(10, 26, dtype=jnp.int32)[None]
    return float(loss_of(params, TINY, token_ids, jnp.ones((1, 16), jnp.float32)))


@pytest.mark.slow
def test_training_lowers_the_loss_and_repeats_by_seed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    before = held_loss(init_params(TINY, jax.random.key(0), jnp.float32))
    with persistent_cache(str(tmp_path)):  # the second training compiles nothing
        trained, again = train_tiny(), train_tiny()
    assert "step 50/50" in capsys.readouterr().out
    assert held_loss(trained) < before - 1.0
    for one, two in zip(jax.tree.leaves(trained), jax.tree.leaves(again), strict=True):
        assert np.array_equal(one, two)


def test_phases_follow_each_other_with_their_own_batch_shapes():
    phases = (Phase(2, 4, 16), Phase(1, 2, 24))
    schedule = dataclasses.replace(SCHEDULE, phases=phases)
    shapes = [ids.shape for ids, _ in batches_of(schedule, counting_examples(), 0, 0)]
    assert shapes == [(4, 16), (4, 16), (2, 24)]


def test_the_schedule_follows_the_device_and_the_flags_shorten_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sys.argv", ["bundled_model"])
    assert choose_schedule(parse_arguments()) == SCHEDULES["cpu"]
    monkeypatch.setattr("sys.argv", ["bundled_model", "--schedule", "gpu", "--share", "0.5"])
    half = choose_schedule(parse_arguments())
    assert [phase.steps for phase in half.phases] == [1300, 100, 300]
    flags = ["--schedule", "gpu", "--steps", "50", "--items", "7", "--questions", "0"]
    monkeypatch.setattr("sys.argv", ["bundled_model", *flags])
    short = choose_schedule(parse_arguments())
    assert (short.num_steps, short.num_items, short.num_questions) == (50, 7, 0)
    assert short.warmup < short.num_steps
    assert short.learning_rate == SCHEDULES["gpu"].learning_rate


def test_training_stops_when_the_time_is_over(capsys: pytest.CaptureFixture[str]):
    long = dataclasses.replace(SCHEDULE, phases=(Phase(10_000, 2, 16),))
    train_tiny(long, max_seconds=0.0)
    assert "step 100/10000" in (printed := capsys.readouterr().out)
    assert "stopped early" in printed
    assert "step 200/10000" not in printed


def test_tokens_of_weight_zero_teach_nothing():
    params = init_params(TINY, jax.random.key(0), jnp.float32)
    token_ids = jnp.arange(16, dtype=jnp.int32)[None]
    weights = jnp.ones((1, 16), jnp.float32).at[0, 8:].set(0.0)
    changed = token_ids.at[0, 12:].set(3)
    taught = loss_of(params, TINY, token_ids, weights)
    assert taught == loss_of(params, TINY, changed, weights)
    assert taught != loss_of(params, TINY, token_ids.at[0, 4:].set(3), weights)


def test_what_is_written_is_what_the_engine_reads(tmp_path: Path):
    tokenizer = Tokenizer.from_file(str(TEMPLATE.parent / "tokenizer.json"))
    params = init_params(TINY, jax.random.key(1), jnp.float32)
    write_model(tmp_path, TINY, tokenizer, params)
    config = ModelConfig.from_directory(tmp_path)
    assert config == TINY
    read = load_params(tmp_path, config, jnp.float32)
    assert jax.tree.structure(read) == jax.tree.structure(params)
    for one, two in zip(jax.tree.leaves(read), jax.tree.leaves(params), strict=True):
        assert np.array_equal(one, two)
    engine_tokenizer = EngineTokenizer.from_directory(tmp_path)
    assert engine_tokenizer.eos_token_ids[0] == 1
    assert engine_tokenizer.chat_template


def test_a_model_that_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    tokenizer = Tokenizer.from_file(str(TEMPLATE.parent / "tokenizer.json"))
    monkeypatch.setattr(assets, "MAX_BYTES", 1000)
    with pytest.raises(ValueError, match="1,000 are allowed"):
        write_model(tmp_path, TINY, tokenizer, init_params(TINY, jax.random.key(1), jnp.float32))


@pytest.mark.slow
def test_the_bundled_weights_answer_by_the_plain_forward():
    config = ModelConfig.from_directory(TEMPLATE.parent)
    tokenizer = Tokenizer.from_file(str(TEMPLATE.parent / "tokenizer.json"))
    params = load_params(TEMPLATE.parent, config, jnp.float32)
    asked: list[Question] = [q for q in questions(3) if q.item.kind == "sum" and not q.thinking]
    trials = answer(params, config, tokenizer, asked, max_tokens=16, rows=2)
    assert [trial.question for trial in trials] == asked
    assert all(trial.ended for trial in trials)
    assert rates(trials)["sums_right"].share == 1.0
