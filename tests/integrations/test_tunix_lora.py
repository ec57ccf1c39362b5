"""Tunix trains LoRA adapters with jaxinfer's rollouts; `scripts/tunix/env.sh` runs this file."""

import functools
import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.integrations import tunix_run
from tests.rollouts.test_update_params import pointers

pytestmark = [
    pytest.mark.tunix,
    pytest.mark.optimized,
    pytest.mark.skipif(importlib.util.find_spec("tunix") is None, reason="needs google-tunix"),
    # Deprecations of tunix and of what it imports.
    pytest.mark.filterwarnings("ignore"),
]
SMALL = {"num_kv_blocks": 200, "max_num_seqs": 16}
NUM_STEPS, RANK, ALPHA = 3, 4, 8.0


@pytest.fixture(scope="module", autouse=True)
def _loose_promotion():
    """Tunix's own code mixes dtypes."""
    jax.config.update("jax_numpy_dtype_promotion", "standard")
    yield
    jax.config.update("jax_numpy_dtype_promotion", "strict")


@pytest.fixture(scope="module")
def run():
    """Three steps of GRPO on adapters; the cluster, and each rollout beside the trainer's scores.

    The adapters begin as zero and learn fast, so that a rollout of older ones would be seen.
    """
    with tunix_run.third_party_warnings():
        from jaxinfer.integrations.tunix import JaxinferRollout

        seen = []

        class Watched(JaxinferRollout):
            def generate(self, prompts, rollout_config, **_):
                output = super().generate(prompts, rollout_config)
                version = self.llm._handle.arguments.adapters.find("policy").version
                seen.append((output, version, trainer_scores(cluster, output)))
                return output

        engine = functools.partial(Watched, lora_alpha=ALPHA, **SMALL)
        learner = tunix_run.make_learner(
            engine, NUM_STEPS, 2, 4, lora_alpha=ALPHA, learning_rate=3e-2
        )
        cluster = learner.rl_cluster
        learner.train(tunix_run.batches(NUM_STEPS, 2))
        yield cluster, seen
        cluster.rollout.close()


def trainer_scores(cluster, output, temperature=0.9):
    """What the trainer's own model, with its adapters, says of each completion, ``[B, 32]``."""
    from flax import nnx
    from tunix.rl import common

    pad = cluster.rollout.pad_id()
    graph, state = nnx.split(cluster.actor_trainer.model)
    scores = common.compute_per_token_logps(
        graph,
        state,
        jnp.asarray(output.left_padded_prompt_tokens),
        jnp.asarray(padded(output.tokens, pad)),
        pad,
        cluster.rollout.eos_id(),
        temperature=temperature,
    )
    return np.asarray(scores)


def padded(rows, pad):
    completions = np.full((len(rows), 32), pad, np.int32)
    for i, row in enumerate(rows):
        completions[i, : len(row)] = row
    return completions


def test_the_trainer_scores_each_rollout_as_the_engine_did(run):
    _, seen = run
    assert len(seen) == NUM_STEPS
    for output, _, scores in seen:
        for row, logprobs, own in zip(output.tokens, output.logprobs, scores, strict=True):
            np.testing.assert_allclose(logprobs, own[: len(row)], atol=1e-3)


def test_the_adapters_changed_what_is_drawn(run):
    """Without the adapters the same tokens have other log-probabilities."""
    cluster, seen = run
    output, _, _ = seen[-1]
    rollout, pad = cluster.rollout, cluster.rollout.pad_id()
    pairs = [
        (prompt[prompt != pad].tolist(), row.tolist())
        for prompt, row in zip(output.left_padded_prompt_tokens, output.tokens, strict=True)
    ]
    plain, adapted = (rollout.llm.score(pairs, lora_request=name) for name in (None, "policy"))
    gaps = [
        np.abs(np.subtract(a.token_logprobs[a.start :], b.token_logprobs[b.start :])).max()
        for a, b in zip(plain, adapted, strict=True)
    ]
    assert max(gaps) > 0.05


def test_every_step_syncs_a_version_of_the_adapter_and_no_weights(run):
    cluster, seen = run
    versions = [version for _, version, _ in seen]
    assert versions == sorted(set(versions))
    llm = cluster.rollout.llm
    assert llm.weight_version == 0
    assert llm.adapters == ("policy",)


def test_a_sync_leaves_the_weights_where_they_are(run):
    cluster, _ = run
    llm = cluster.rollout.llm
    places = pointers(weights_of(llm))
    cluster.sync_weights()  # under tunix's guard against transfers
    cluster.rollout.generate([tunix_run.PROMPTS[0]], tunix_run.rollout_config())
    assert pointers(weights_of(llm)) == places


def test_completions_of_others_are_scored_with_the_adapter(run):
    cluster, seen = run
    output, _, _ = seen[-1]
    cluster.sync_weights()  # forgets what was drawn
    pad = cluster.rollout.pad_id()
    scores = cluster.rollout.get_per_token_logps(
        output.left_padded_prompt_tokens, padded(output.tokens, pad)
    )
    own = trainer_scores(cluster, output, temperature=1.0)
    for i, row in enumerate(output.tokens):
        np.testing.assert_allclose(scores[i, : len(row)], own[i, : len(row)], atol=1e-3)


def weights_of(llm):
    return jax.tree.leaves(llm._loaded.replicas[0].runner.resident.params["model"])


def rollout_of(actor, cluster, mesh=None, **options):
    from jaxinfer.integrations.tunix import JaxinferRollout

    return JaxinferRollout(
        rollout_actor=actor,
        tokenizer=cluster.tokenizer,
        mesh=tunix_run.make_mesh() if mesh is None else mesh,
        rollout_config=tunix_run.rollout_config(),
        **SMALL,
        **options,
    )


def test_a_missing_alpha_and_one_too_many_are_named(run):
    cluster, _ = run
    actor = cluster.actor_trainer.model
    with pytest.raises(ValueError, match=r"partial\(JaxinferRollout, lora_alpha="):
        rollout_of(actor, cluster)
    plain = tunix_run.make_model(tunix_run.make_mesh())
    with pytest.raises(ValueError, match=r"lora_alpha is 8\.0, and the actor has no LoRA adapters"):
        rollout_of(plain, cluster, lora_alpha=ALPHA)


@pytest.mark.parametrize("size", [(1, 2), (2, 1)], ids=["tp", "fsdp"])
def test_adapters_are_split_as_tunixs_mesh_says(run, size):
    from flax import nnx

    cluster, seen = run
    output, _, _ = seen[-1]
    mesh = tunix_run.make_mesh(*size)
    actor = tunix_run.with_adapters(tunix_run.make_model(mesh), mesh, RANK, ALPHA)
    trained = jax.device_get(nnx.state(cluster.actor_trainer.model, nnx.LoRAParam))
    placed = jax.tree.map(
        lambda own, new: jax.device_put(new, own.sharding),
        nnx.state(actor, nnx.LoRAParam),
        trained,
    )
    rollout = rollout_of(actor, cluster, mesh, lora_alpha=ALPHA)
    rollout.update_params(placed, (nnx.LoRAParam,))
    scores = rollout.get_per_token_logps(
        output.left_padded_prompt_tokens, padded(output.tokens, rollout.pad_id())
    )
    rollout.close()
    own = trainer_scores(cluster, output, temperature=1.0)
    for i, row in enumerate(output.tokens):
        np.testing.assert_allclose(scores[i, : len(row)], own[i, : len(row)], atol=1e-3)
