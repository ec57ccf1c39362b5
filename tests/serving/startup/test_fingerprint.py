"""Whatever changes keys and values, or where they lie, changes the fingerprint; nothing else."""

import dataclasses
import functools
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from jaxinfer import ModelConfig, make_mesh
from jaxinfer.kernels.policy import XLA, Kernels
from jaxinfer.model.adapters.device_slots import ADAPTERS
from jaxinfer.model.longrope import LongRopeScaling
from jaxinfer.model.quantized.quantization import with_scheme
from jaxinfer.model.rope_scaling import RopeScaling
from jaxinfer.model.sharding import ShardingRules
from jaxinfer.serving.prefix_tiers.weights_digest import weights_digest
from jaxinfer.serving.programs.programs import Programs
from jaxinfer.serving.programs.steps import StepContext
from jaxinfer.serving.startup import fingerprint as fingerprints
from jaxinfer.serving.startup.fingerprint import fingerprint, ingredients
from jaxinfer.testing import TINY_CONFIG, tiny_params


@functools.cache
def params() -> dict[str, Any]:
    return tiny_params()


def programs(devices: int = 1, num_blocks: int = 9, num_slots: int = 5, **of: Any) -> Programs:
    """Programs of the tiny model; `of` replaces fields of their context."""
    mesh = make_mesh(devices)
    context = StepContext(TINY_CONFIG, mesh, ShardingRules(), XLA, 16, "float32")
    return Programs(dataclasses.replace(context, **of), params(), num_blocks, num_slots)


@functools.cache
def plain() -> str:
    return fingerprint(programs(), params())


def changed(**fields: Any) -> ModelConfig:
    return dataclasses.replace(TINY_CONFIG, **fields)


@pytest.mark.slow
def test_it_is_the_same_in_another_process() -> None:
    script = "from tests.serving.startup.test_fingerprint import plain; print(plain())"
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert out.stdout.split() == [plain()]
    assert len(plain()) == 64


def test_it_ignores_what_leaves_blocks_as_they_are() -> None:
    more = programs(num_blocks=17, num_slots=9, max_logprobs=3, logprobs_mode="raw_logprobs")
    assert fingerprint(more, {**params(), ADAPTERS: {"slots": jnp.ones(3)}}) == plain()


_LONG = LongRopeScaling((1.0,) * 8, (2.0,) * 8, 64, 1.1, is_long=False)


@pytest.mark.parametrize(
    "of",
    [
        {"block_size": 32},
        {"dtype": "bfloat16"},
        {"kv_cache_dtype": "fp8_e4m3"},
        {"kv_cache_dtype": "int8"},
        {"kernels": Kernels("mosaic")},
        {"peer_buffers": True},
        {"rules": ShardingRules(vocab=None)},
        {"devices": 2},
        {"config": changed(rope_theta=20_000.0)},
        {"config": changed(rms_norm_eps=1e-5)},
        {"config": changed(partial_rotary_factor=0.5)},
        {"config": changed(rope_scaling=_LONG)},
        {"config": changed(model_type="qwen2")},
        {"config": with_scheme(TINY_CONFIG, "int8")},
    ],
    ids=str,
)
def test_each_part_of_the_context_changes_it(of: dict[str, Any]) -> None:
    assert fingerprint(programs(**of), params()) != plain()


def test_each_rotation_of_longrope_has_one() -> None:
    short, long = (
        fingerprint(programs(config=changed(rope_scaling=_LONG).for_context(length)), params())
        for length in (64, 65)
    )
    assert short != long


def test_scaled_rotations_have_one() -> None:
    yarn = RopeScaling(factor=4.0, original_max_position_embeddings=64)
    assert fingerprint(programs(config=changed(rope_scaling=yarn)), params()) != plain()


@pytest.mark.parametrize("name", ["FORMAT_VERSION", "__version__"])
def test_versions_change_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = plain()
    monkeypatch.setattr(fingerprints, name, "another")
    assert fingerprint(programs(), params()) != before


def test_the_precision_of_products_changes_it() -> None:
    before = plain()
    with jax.default_matmul_precision("highest"):
        assert fingerprint(programs(), params()) != before


def test_an_eager_engine_and_a_draft_head_change_it() -> None:
    eager = dataclasses.replace(programs(), is_eager=True)
    assert fingerprint(eager, params()) != plain()
    assert fingerprint(programs(), params(), draft_head=changed(rope_theta=5.0)) != plain()


def test_every_field_of_the_model_is_covered() -> None:
    text = ingredients(programs(), params())["model"]
    assert all(f"{field.name}=" in text for field in dataclasses.fields(ModelConfig))


def test_every_value_of_every_weight_changes_it() -> None:
    leaves, tree = jax.tree.flatten(params())
    seen = {weights_digest(params())}
    for place, leaf in enumerate(leaves):
        for element in (0, leaf.size // 2, leaf.size - 1):
            values = np.asarray(leaf).copy()
            values.flat[element] = np.nextafter(values.flat[element], np.inf)
            other = [*leaves]
            other[place] = jnp.asarray(values)
            seen.add(weights_digest(jax.tree.unflatten(tree, other)))
    assert len(seen) == 1 + 3 * len(leaves)


def test_places_paths_shapes_and_types_change_the_digest() -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    trees = [
        {"a": x},
        {"b": x},
        {"a": x.T},
        {"a": x.reshape(4, 3)},
        {"a": x[::-1]},
        {"a": x, "b": x},
        {"a": x.astype(np.int32)},
        {"a": x.view(np.int32)},
        {"a": x.astype(np.float16)},
        {"a": x.astype(np.int8)},
        {"a": jnp.asarray(x, jnp.bfloat16)},
        {"a": jnp.asarray(x, jnp.float8_e4m3fn)},
        {"a": jnp.asarray(x[0], jnp.int4)},
        {"a": np.float32(1)},
    ]
    arrays = [jax.tree.map(jnp.asarray, tree) for tree in trees]
    assert len({weights_digest(tree) for tree in arrays}) == len(trees)


def test_the_digest_does_not_depend_on_devices() -> None:
    values = np.random.default_rng(0).normal(size=(16, 8)).astype(np.float32)
    mesh = make_mesh(4)
    digests = {
        weights_digest({"a": jax.device_put(values, NamedSharding(mesh, spec))})
        for spec in (PartitionSpec(), PartitionSpec("tensor"), PartitionSpec(None, "tensor"))
    }
    assert digests == {weights_digest({"a": jnp.asarray(values)})}
