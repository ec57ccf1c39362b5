"""Traces programs in a process of its own, without a device, into a program store.

Tracing holds Python's global lock, so threads can't share it; processes can. Each line on stdin
names a file that holds a pickled `Task`, written by the engine's process into a directory of its
own. The store receives the programs, and each is named on stdout as soon as it is there. An error
ends the process; the engine then sees the end of its output and traces the missing programs itself.
"""

import functools
import pickle
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType, NamedSharding

from jaxinfer.serving.compile.program_store import ProgramStore, export_program
from jaxinfer.serving.compile.shared_forward import SharedForward
from jaxinfer.serving.programs.kinds.kind import ProgramKey
from jaxinfer.serving.programs.pipeline.stage_programs import StagePrograms
from jaxinfer.serving.programs.pipeline.stage_step import Stage
from jaxinfer.serving.programs.program_set import program_of
from jaxinfer.serving.programs.programs import Programs
from jaxinfer.serving.programs.speculative.drafter import DraftTextSizes
from jaxinfer.serving.programs.steps import StepContext


@dataclass(frozen=True)
class Task:
    """Programs for a worker to trace; can be pickled.

    Attributes:
        context: the fields of the engine's `StepContext`, whose mesh is only described.
        params: as `Programs` has them, on that mesh.
        work: the identity that each program is saved under.
        platform: the platform to lower for, as `jax.export` names it.
        stage: of a pipeline, whose programs they are; None without one.
    """

    context: Mapping[str, Any]
    params: Mapping[str, Any]
    num_blocks: int
    num_slots: int
    texts: DraftTextSizes | None
    work: Mapping[ProgramKey, str]
    directory: Path
    platform: str
    settings: Mapping[str, Any]
    stage: Stage | None = None


def make_task(
    programs: Programs, work: Mapping[ProgramKey, str], *, store: ProgramStore, platform: str
) -> Task:
    """A task for a worker, with JAX's settings as they are here.

    Args:
        work: programs that hold no custom function, with the identities they are saved under.
    """
    mesh = programs.context.mesh
    abstract: Any = AbstractMesh(
        mesh.axis_sizes,
        mesh.axis_names,
        axis_types=(AxisType.Auto,) * len(mesh.axis_names),
        abstract_device=mesh.abstract_mesh.abstract_device,
    )

    def describe(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        sharding: Any = leaf.sharding
        placed = NamedSharding(abstract, sharding.spec)
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=placed)

    context = {field.name: getattr(programs.context, field.name) for field in fields(StepContext)}
    # A user's functions may be local ones, which can't be sent.
    own = {"mesh": abstract, "logits_processor": None, "sampler": None}
    return Task(
        context | own,
        jax.tree.map(describe, programs.params),
        programs.num_blocks,
        programs.num_slots,
        programs.texts,
        work,
        store.directory,
        platform,
        _settings(),
        programs.stage if isinstance(programs, StagePrograms) else None,
    )


def trace(task: Task) -> None:
    """Do a task; names each program when it is in the store."""
    for name, value in task.settings.items():
        if getattr(jax.config, name, None) != value:
            jax.config.update(name, value)
    kind = functools.partial(StagePrograms, stage=task.stage) if task.stage else Programs
    programs = kind(
        StepContext(**task.context),
        task.params,
        task.num_blocks,
        task.num_slots,
        SharedForward(task.platform),
        task.texts,
    )
    store = ProgramStore(task.directory)
    # Some kernels look the device up while they are traced.
    device = programs.context.mesh.abstract_mesh.abstract_device
    with jax.sharding.use_abstract_mesh(AbstractMesh((), (), abstract_device=device)):
        for key, identity in task.work.items():
            store.save(identity, export_program(program_of(programs, key), task.platform))
            print(identity, flush=True)


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
        trace(pickle.loads(Path(line.strip()).read_bytes()))
