"""Traces programs in a process of its own, without a device, into a program store.

Tracing holds Python's global lock, so threads can't share it; processes can. Each line on stdin
names a file, written by `describe_work`, that says which programs of which engine; the store
receives them; and each is named on stdout as soon as it is there. An error ends the process:
the engine sees the end of its output and traces the missing programs itself.
"""

import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from jaxinfer.kernels.policy import Kernels
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.quantization import Int8Weights
from jaxinfer.model.rope_scaling import scaling_from_fields
from jaxinfer.model.sharding import ShardingRules
from jaxinfer.serving.compile.key_json import key_from_values, key_values
from jaxinfer.serving.compile.program_store import ProgramStore, export_program
from jaxinfer.serving.compile.shared_forward import SharedForward
from jaxinfer.serving.programs.kinds.kind import ProgramKey
from jaxinfer.serving.programs.program_set import program_of
from jaxinfer.serving.programs.programs import Programs
from jaxinfer.serving.programs.steps import StepContext


def describe_work(
    programs: Programs,
    keys: Sequence[ProgramKey],
    identities: Sequence[str],
    *,
    store: ProgramStore,
    platform: str,
) -> dict[str, Any]:
    """A worker's task as JSON values.

    Args:
        programs: of an engine without custom functions.
        keys: programs of any kind.
        identities: what each is saved under.
        store: where.
        platform: what to lower for, as `jax.export` names it.
    """
    context = programs.context
    leaves, _ = jax.tree.flatten_with_path(programs.params)
    device = context.mesh.abstract_mesh.abstract_device
    return {
        "config": dataclasses.asdict(context.config),
        "config_repr": repr(context.config),
        "rules": dataclasses.asdict(context.rules),
        "mesh": [list(context.mesh.axis_sizes), list(context.mesh.axis_names)],
        "device": device and [device.device_kind, device.num_cores, device.platform],
        "kernels": dataclasses.asdict(context.kernels),
        "block_size": context.block_size,
        "dtype": context.dtype,
        "peer_buffers": context.peer_buffers,
        "max_logprobs": context.max_logprobs,
        "logprobs_mode": context.logprobs_mode,
        "kv_cache_dtype": context.kv_cache_dtype,
        "num_blocks": programs.num_blocks,
        "num_slots": programs.num_slots,
        "params": [
            [[part.key for part in path], list(leaf.shape), str(leaf.dtype), [*leaf.sharding.spec]]
            for path, leaf in leaves
        ],
        "settings": _settings(),
        "platform": platform,
        "directory": str(store.directory),
        "tasks": [
            [key_values(key), identity] for key, identity in zip(keys, identities, strict=True)
        ],
    }


def work(description: dict[str, Any]) -> None:
    """Trace what `describe_work` describes; names each program when it is in the store."""
    for name, value in description["settings"].items():
        if getattr(jax.config, name, None) != value:
            jax.config.update(name, value)
    programs = _programs(description)
    store = ProgramStore(description["directory"])
    # Some kernels look the device up while they are traced.
    device = programs.context.mesh.abstract_mesh.abstract_device
    with jax.sharding.use_abstract_mesh(AbstractMesh((), (), abstract_device=device)):
        for values, identity in description["tasks"]:
            program = program_of(programs, key_from_values(values))
            store.save(identity, export_program(program, description["platform"]))
            print(identity, flush=True)


def _programs(description: dict[str, Any]) -> Programs:
    fields = description["config"]
    scaling, quantization = fields["rope_scaling"], fields["quantization"]
    config = ModelConfig(
        **{
            **fields,
            "rope_scaling": scaling and scaling_from_fields(scaling),
            "eos_token_ids": tuple(fields["eos_token_ids"]),
            "quantization": quantization and Int8Weights.from_values(quantization),
        }
    )
    if repr(config) != description["config_repr"]:
        raise ValueError(f"{config!r} is not {description['config_repr']}")
    device = description["device"]
    sizes, names = description["mesh"]
    mesh: Any = AbstractMesh(
        tuple(sizes),
        tuple(names),
        axis_types=(AxisType.Auto,) * len(names),
        abstract_device=device and jax.sharding.AbstractDevice(*device),
    )
    params: dict[str, Any] = {}
    for path, shape, dtype, spec in description["params"]:
        node = params
        for name in path[:-1]:
            node = node.setdefault(name, {})
        sharding = NamedSharding(mesh, PartitionSpec(*spec))
        node[path[-1]] = jax.ShapeDtypeStruct(tuple(shape), dtype, sharding=sharding)
    context = StepContext(
        config,
        mesh,
        ShardingRules(**description["rules"]),
        Kernels(**description["kernels"]),
        description["block_size"],
        description["dtype"],
        description["peer_buffers"],
        max_logprobs=description["max_logprobs"],
        logprobs_mode=description["logprobs_mode"],
        kv_cache_dtype=description["kv_cache_dtype"],
    )
    return Programs(
        context,
        params,
        description["num_blocks"],
        description["num_slots"],
        SharedForward(description["platform"]),
    )


def _settings() -> dict[str, Any]:
    """JAX's settings that tracing may read, as far as they are plain values, and no device's."""
    parts = ("platform", "cache", "device", "dump", "log", "backend")
    found = {
        name: getattr(jax.config, name, None)
        for name in jax.config.values
        if not any(part in name for part in parts)
    }
    return {k: v for k, v in found.items() if v is None or isinstance(v, bool | int | float | str)}


if __name__ == "__main__":
    for line in sys.stdin:
        work(json.loads(Path(line.strip()).read_text()))
