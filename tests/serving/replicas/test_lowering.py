"""Replicas' programs are traced once, and compiled for each replica's devices."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from jaxinfer.model.modules import abstract_params
from jaxinfer.model.sharding import ShardingRules
from jaxinfer.serving import kv_cache
from jaxinfer.serving.compilation import CompiledPrograms
from jaxinfer.serving.layout import DecodeShape
from jaxinfer.serving.programs import Programs
from jaxinfer.serving.replicas.lowering import SharedLowering
from jaxinfer.serving.replicas.meshes import make_replica_mesh, split_mesh
from jaxinfer.serving.steps import StepContext
from tests.serving.small_llm import CONFIG, small_params

KEY = DecodeShape(4, 4)


def test_a_program_is_lowered_once_and_runs_on_every_replica(monkeypatch):
    rules = ShardingRules()
    meshes = split_mesh(make_replica_mesh(2, 2), rules)
    lowering = SharedLowering([d for mesh in meshes for d in mesh.devices.flat])
    lowered = []
    lower = Programs.lower
    monkeypatch.setattr(
        Programs, "lower", lambda self, key: lowered.append(key) or lower(self, key)
    )
    hidden = []
    for mesh in meshes:
        described = abstract_params(CONFIG, jnp.float32, mesh, rules)
        programs = Programs(StepContext(CONFIG, mesh, rules, "xla", 16), described, 9, 5)
        compiled = CompiledPrograms(lowering.bind(programs, mesh), lambda key: {}, "")
        params = jax.tree.map(
            lambda x, like: jax.device_put(x, like.sharding), small_params(), described
        )
        kv, last_tokens = kv_cache.allocate(programs)
        packed = jax.device_put(np.zeros(KEY.size, np.int32), NamedSharding(mesh, PartitionSpec()))
        pages, out, _ = compiled[KEY](params, kv, packed, last_tokens)
        assert out.devices() == set(mesh.devices.flat)
        assert kv[0][0].is_deleted()  # donated
        assert pages[0][0].sharding.is_equivalent_to(programs.pages.sharding, 4)
        hidden.append(np.asarray(out))
    assert lowered == [KEY]
    np.testing.assert_array_equal(*hidden)
