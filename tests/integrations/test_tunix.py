"""Tunix trains with jaxinfer's rollouts; `scripts/tunix/env.sh` runs this file."""

import functools
import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.integrations import tunix_run
from tests.rollouts.test_update_params import pointers, used

pytestmark = [
    pytest.mark.tunix,
    pytest.mark.optimized,
    pytest.mark.skipif(importlib.util.find_spec("tunix") is None, reason="needs google-tunix"),
    # Deprecations of tunix and of what it imports.
    pytest.mark.filterwarnings("ignore"),
]
SMALL = {"num_kv_blocks": 200, "max_num_seqs": 16}
NUM_STEPS = 3


@pytest.fixture(scope="module", autouse=True)
def _loose_promotion():
    """Tunix's own code mixes dtypes."""
    jax.config.update("jax_numpy_dtype_promotion", "standard")
    yield
    jax.config.update("jax_numpy_dtype_promotion", "strict")


@pytest.fixture(scope="module")
def run():
    """Three steps of GRPO; the cluster, and what each rollout was beside the trainer's scores."""
    with tunix_run.third_party_warnings():
        from tunix.rl import common

        from jaxinfer.integrations.tunix import JaxinferRollout

        seen = []

        class Watched(JaxinferRollout):
            def generate(self, prompts, rollout_config, **_):
                output = super().generate(prompts, rollout_config)
                seen.append((output, self.llm.weight_version, trainer_scores(output)))
                return output

        learner = tunix_run.make_learner(
            functools.partial(Watched, **SMALL), NUM_STEPS, 2, 4, eos_tokens=[END]
        )
        cluster = learner.rl_cluster

        def trainer_scores(output):
            from flax import nnx

            pad = cluster.rollout.pad_id()
            graph, state = nnx.split(cluster.actor_trainer.model)
            completions = np.full((len(output.tokens), 32), pad, np.int32)
            for i, row in enumerate(output.tokens):
                completions[i, : len(row)] = row
            prompts = jnp.asarray(output.left_padded_prompt_tokens)
            scores = common.compute_per_token_logps(
                graph, state, prompts, jnp.asarray(completions), pad, END, temperature=0.9
            )
            again = cluster.rollout.get_per_token_logps(prompts, completions)
            return np.asarray(scores), np.asarray(again)

        learner.train(tunix_run.batches(NUM_STEPS, 2))
        yield cluster, seen
        cluster.rollout.close()


END = 13
"""A full stop, so that most completions end."""


def test_the_trainer_scores_each_rollout_as_the_engine_did(run):
    _, seen = run
    assert len(seen) == NUM_STEPS
    for output, _, (scores, again) in seen:
        for row, logprobs, own, known in zip(
            output.tokens, output.logprobs, scores, again, strict=True
        ):
            np.testing.assert_allclose(logprobs, own[: len(row)], atol=1e-3)
            np.testing.assert_array_equal(logprobs, known[: len(row)])


def test_weights_are_synced_after_every_step(run):
    cluster, seen = run
    assert [version for _, version, _ in seen] == [0, 1, 2]
    assert cluster.rollout.llm.weight_version == NUM_STEPS


def test_the_pad_is_no_end_and_never_drawn(run):
    cluster, seen = run
    pad = cluster.rollout.pad_id()
    assert pad not in (END, cluster.rollout.eos_id(), cluster.tokenizer.pad_id())
    assert not any((row == pad).any() for output, _, _ in seen for row in output.tokens)


def test_end_tokens_are_kept_and_their_text_is_not(run):
    cluster, seen = run
    ended = 0
    for output, _, _ in seen:
        for row, text in zip(output.tokens, output.text, strict=True):
            if row[-1] == END:
                ended += 1
                assert text == cluster.tokenizer.decode(row[:-1].tolist())
            else:
                assert len(row) == 32
    assert ended


def test_a_sync_is_written_into_the_memory_of_the_last_weights(run):
    cluster, _ = run
    llm = cluster.rollout.llm
    before, version = used(llm), llm.weight_version
    places = pointers(before)
    cluster.sync_weights()  # under tunix's guard against transfers
    assert llm.weight_version == version + 1
    assert all(leaf.is_deleted() for leaf in before)
    assert pointers(used(llm)) == places


def test_completions_of_others_are_scored(run):
    cluster, _ = run
    rollout = cluster.rollout
    pad = rollout.pad_id()
    scores = rollout.get_per_token_logps(np.array([[pad, 100, 101]]), np.array([[102, 103, pad]]))
    (scored,) = rollout.llm.score([([100, 101], [102, 103])])
    np.testing.assert_allclose(scores[0], [*scored.token_logprobs[2:], 0.0], rtol=1e-6)


def test_a_seed_repeats_a_run_but_not_a_call(run):
    cluster, _ = run
    rollout = cluster.rollout
    config = tunix_run.rollout_config(seed=jax.random.PRNGKey(3))

    def draw(calls):
        rollout._calls = calls
        return [row.tolist() for row in rollout.generate(["Once", "Once", "One"], config).tokens]

    assert draw(0) == draw(0)
    assert draw(0) != draw(1)
    assert draw(0)[0] != draw(0)[1]


def test_adapters_of_a_model_that_had_none_are_refused(run):
    from flax import nnx

    cluster, _ = run
    with pytest.raises(ValueError, match="the actor had no LoRA adapters when this"):
        cluster.rollout.update_params({}, (nnx.LoRAParam,))


def test_a_prompt_longer_than_tunix_allows_is_refused(run):
    cluster, _ = run
    config = tunix_run.rollout_config(max_prompt_length=2)
    with pytest.raises(ValueError, match="prompt 0 has"):
        cluster.rollout.generate(["Once upon a time, in a village"], config)


def test_heads_are_split_over_tp(run):
    cluster, _ = run
    from jaxinfer.integrations.tunix import JaxinferRollout

    mesh = tunix_run.make_mesh(1, 2)
    config = tunix_run.rollout_config(temperature=0.0)
    rollout = JaxinferRollout(
        rollout_actor=tunix_run.make_model(mesh),
        tokenizer=cluster.tokenizer,
        mesh=mesh,
        rollout_config=config,
        **SMALL,
    )
    assert len(rollout.llm.generate([[100]], use_tqdm=False)) == 1
    output = rollout.generate([tunix_run.PROMPTS[0]], config)
    rollout.close()
    assert output.text[0]
