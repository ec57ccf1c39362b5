"""Describes the programs of one stage, and of a pipeline as a whole."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding

from jaxinfer.kernels.attention.kv_cache_spec import KVCacheSpec
from jaxinfer.model.families.table import family_of
from jaxinfer.model.stages.stage_layers import stage_layers
from jaxinfer.model.stages.staged_params import stage_meshes, stage_params
from jaxinfer.serving.programs.layout import StepShape
from jaxinfer.serving.programs.peer_buffers import have_peer_buffers, reach_each_other
from jaxinfer.serving.programs.pipeline.stage_step import Stage
from jaxinfer.serving.programs.pipeline.step_parts import STEP_PARTS, StepPart
from jaxinfer.serving.programs.programs import WHOLE, Program, Programs
from jaxinfer.serving.programs.steps import KVCache


@dataclass(frozen=True, kw_only=True)
class StagePrograms(Programs):
    """The programs of one stage: parts of steps, copies of blocks, and on the last all others.

    Its `context` and `params` are those of a model with the stage's layers alone, beside which the
    last stage has the head.
    """

    stage: Stage

    def program(self, kind: Any, key: Any) -> Program:
        """The program of a key: of a step, its part; of any other kind, that of the kind."""
        part = STEP_PARTS.get(type(key))
        return super().program(kind, key) if part is None else self._part_of_step(part, key)

    @property
    def started_later(self) -> Any:
        """What takes memory beside pages; on the last stage with a copy of a tied head."""
        head = None
        if self.stage.is_last and not self.stage.is_first and "lm_head" not in self.params:
            head = self.params["model"]["embed_tokens"]
        return super().started_later, head

    def own_params(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """The part of the whole tree that the stage's steps read."""
        return stage_params(params, self.stage.layers, self.stage.num_layers)

    def _part_of_step(self, part: StepPart, shape: StepShape) -> Program:
        stage = self.stage
        run = functools.partial(part.run, context=self.context, shape=shape, stage=stage)
        size = (part.num_tokens(shape), self.context.config.hidden_size)
        arguments = (
            self._read_by_steps,
            self.kv,
            self.on_host((shape.size,)),
            None if stage.is_first else self.whole(size, self.dtype),
            self.last_tokens if stage.is_first or stage.is_last else None,
            *self.peers,
        )
        num_outputs = part.num_outputs if stage.is_last else 1
        results = (self.kv, *[WHOLE] * num_outputs)
        return self.sharded(f"{shape.kind}_step", run, arguments, results, donate=(1,))

    @property
    def _read_by_steps(self) -> dict[str, Any]:
        model, stage = self.params["model"], self.stage
        own = {
            name: leaf
            for name, leaf in model.items()
            if name == "layers" or (stage.is_last if name == "norm" else stage.is_first)
        }
        return {"model": own}


@dataclass(frozen=True, kw_only=True)
class PipelinePrograms(Programs):
    """The programs of a pipeline.

    `context` has the whole model, and the devices of the last stage, which sample and keep the
    state of slots; `params` is the whole tree, each leaf on the devices of its stage.

    Attributes:
        devices: the mesh with all stages.
    """

    devices: Mesh

    @property
    def mesh(self) -> Mesh:
        """All devices."""
        return self.devices

    @property
    def stages(self) -> tuple[StagePrograms, ...]:
        """Each stage's programs.

        Raises:
            ValueError: there are fewer layers than stages, or a model of a stage's layers alone
                would have other kinds of layers.
        """
        return self._stages

    @functools.cached_property
    def _stages(self) -> tuple[StagePrograms, ...]:
        meshes = stage_meshes(self.devices)
        layers = stage_layers(self.context.config, len(meshes))
        return tuple(self._stage(*each) for each in enumerate(zip(meshes, layers, strict=True)))

    @property
    def cache(self) -> KVCacheSpec:
        """The layout of the KV cache of the stage with the most layers."""
        return max((stage.cache for stage in self.stages), key=lambda cache: len(cache.layers))

    @property
    def kv(self) -> KVCache:
        """Shapes of the whole KV cache."""
        return tuple(pages for stage in self.stages for pages in stage.kv)

    @property
    def peers(self) -> Any:
        """Each stage's, in order; all stages have them, or none."""
        return tuple(each for stage in self.stages for each in stage.peers)

    @property
    def head_of(self) -> "LastStageHead":
        """From a tree to the head's part of it, on the last stage."""
        return LastStageHead(self.stages[-1])

    def _stage(self, index: int, placed: tuple[Mesh, range]) -> StagePrograms:
        mesh, layers = placed
        whole = self.context.config
        family = family_of(whole.model_type)
        kinds = family.layer_kinds(whole)[layers.start : layers.stop]
        config = family.with_layers(whole, [*layers])
        if tuple(family_of(config.model_type).layer_kinds(config)) != tuple(kinds):
            raise ValueError(
                f"pipeline_parallel_size {len(stage_meshes(self.devices))} would leave a "
                f"{whole.model_type} of layers {layers.start} to {layers.stop - 1} on a stage, "
                "which alone are other layers; leave it out"
            )
        context = replace(
            self.context,
            mesh=mesh,
            config=config,
            peer_buffers=have_peer_buffers(mesh, self.context.num_devices, self.context.kernels)
            and reach_each_other(mesh),
        )
        stage = Stage(index, layers, whole.num_hidden_layers)
        params = stage_params(self.params, layers, whole.num_hidden_layers)
        if stage.is_last:
            params = _with_head(params, self.params, mesh)
        return StagePrograms(
            context,
            params,
            self.num_blocks,
            self.num_slots,
            samples=self.samples and stage.is_last,
            stage=stage,
        )


class LastStageHead:
    """What the head reads, where samplers run: of a tied model a copy, made once a tree.

    Args:
        stage: the last.
    """

    def __init__(self, stage: StagePrograms) -> None:
        context = stage.context
        self._head_of = context.architecture.head_params
        described = self._head_of(stage.params)
        self._shardings = jax.tree.map(lambda leaf: leaf.sharding, described)
        self._params: Any = None
        self._head: Any = None

    def __call__(self, params: Any) -> Any:
        """The head of a tree; None of None, which forgets the copy."""
        if params is not self._params or params is None:
            self._params = params
            self._head = None
            if params is not None:
                self._head = jax.device_put(self._head_of(params), self._shardings)
        return self._head


def _with_head(params: dict[str, Any], whole: Mapping[str, Any], mesh: Mesh) -> dict[str, Any]:
    """A stage's tree with the leaves that the head reads, described on its devices."""

    def here(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        assert isinstance(leaf.sharding, NamedSharding)
        return leaf.update(sharding=NamedSharding(mesh, leaf.sharding.spec))

    if "lm_head" in whole:
        return {**params, "lm_head": whole["lm_head"]}
    embedding = jax.tree.map(here, whole["model"]["embed_tokens"])
    return {"model": {**params["model"], "embed_tokens": embedding}}
