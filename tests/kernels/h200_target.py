"""Compile for H200s on a machine without a GPU: lowering and XLA's passes, no execution.

The CUDA plugin's compiler needs no driver. It is not a test dependency (140 MB, and JAX would look
for a GPU in every other test), so what uses it is skipped where it is absent.
`scripts/h200_compile.py` makes environments that have it, and runs these tests there.
"""

import importlib.util
import os
from collections.abc import Callable
from typing import Any

import jax
import pytest
from jax.experimental import topologies
from jax.sharding import AbstractMesh, Mesh, SingleDeviceSharding

from jaxinfer.model.sharding import make_mesh

_DESCRIPTION = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152
  shared_memory_per_core: 233472 threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: 4800000000000 l2_cache_size: 62914560 clock_rate_ghz: 1.98
  device_memory_size: 150000000000 shared_memory_per_block_optin: 232448
  cuda_compute_capability { major: 9 }
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
}
platform_name: "CUDA" dnn_version_info { major: 9 minor: 10 patch: 2 }
runtime_version { major: 12 minor: 9 patch: 0 } device_description_str: "NVIDIA H200"
"""

# Some kernels look the device up while they are traced.
_ONE_H200 = AbstractMesh(
    (),
    (),
    abstract_device=jax.sharding.AbstractDevice(
        device_kind="NVIDIA H200", num_cores=132, platform="gpu"
    ),
)


def available() -> bool:
    """Whether a CUDA plugin of some version is installed."""
    if importlib.util.find_spec("jax_plugins") is None:
        return False
    return any(importlib.util.find_spec(f"jax_plugins.xla_cuda{v}") for v in (12, 13))


# tests/conftest.py skips what bears this mark where no plugin is.
needs_plugin = pytest.mark.h200_compile


def h200_mesh(num_devices: int) -> Mesh:
    """A mesh like the engine's over a number of H200s of one host, none of which exists."""
    return make_mesh(num_devices, _devices(num_devices))


def compile_for_h200(
    function: Callable[..., Any], *shapes: Any, donate: tuple[int, ...] = ()
) -> jax.stages.Compiled:
    """Compiles `function` for one H200 at the given `ShapeDtypeStruct`s."""
    sharding = SingleDeviceSharding(_devices(1)[0])
    jitted = jax.jit(function, in_shardings=sharding, out_shardings=sharding, donate_argnums=donate)
    with jax.sharding.use_abstract_mesh(_ONE_H200):
        return jitted.trace(*shapes).lower(lowering_platforms=("cuda",)).compile()


def lower_for_h200(function: Callable[..., Any], *shapes: Any) -> str:
    """The StableHLO of `function` at the given `ShapeDtypeStruct`s; needs no plugin."""
    traced = trace_for_h200(function, *shapes)
    with jax.sharding.use_abstract_mesh(_ONE_H200):
        return traced.lower(lowering_platforms=("cuda",)).as_text()


def trace_for_h200(function: Callable[..., Any], *shapes: Any) -> jax.stages.Traced:
    """`function`, kernels included, traced at the given `ShapeDtypeStruct`s; needs no plugin."""
    with jax.sharding.use_abstract_mesh(_ONE_H200):
        return jax.jit(function).trace(*shapes)


def _devices(count: int) -> list[Any]:
    os.environ.setdefault("JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "1")
    topology = topologies.get_topology_desc(
        platform="cuda",
        topology_name="h200",
        target_config=_DESCRIPTION,
        topology=f"1x1x{count}",
    )
    return list(topology.devices)
