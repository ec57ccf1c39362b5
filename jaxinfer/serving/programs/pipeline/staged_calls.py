"""Calls of a pipeline's programs: as one program of all stages, which runs theirs in turn.

Each returns at once: devices wait for the stage before them, and the host for none.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxinfer.serving.programs.kinds.copy_blocks import CopyBlocksKind
from jaxinfer.serving.programs.pipeline.stage_programs import PipelinePrograms
from jaxinfer.serving.programs.pipeline.staged_inputs import StagedBatch
from jaxinfer.serving.programs.pipeline.step_parts import STEP_PARTS
from jaxinfer.serving.programs.steps import KVCache
from jaxinfer.serving.programs.upload import upload


class StagedCall:
    """The programs of one key on every stage.

    Args:
        key: of the programs.
        programs: of the pipeline.
        compiled: a program for each stage.
        settle: waits for an array if devices get one program at a time.
    """

    def __init__(
        self,
        key: Any,
        programs: PipelinePrograms,
        compiled: Sequence[jax.stages.Compiled],
        settle: Callable[[Any], object],
    ) -> None:
        self.key = key
        self.stages = programs.stages
        self.compiled = compiled
        self.settle = settle
        self.wholes = [stage.whole(()).sharding for stage in self.stages]

    def pages(self, kv: KVCache) -> list[KVCache]:
        """Each stage's part of the cache."""
        layers = [stage.stage.layers for stage in self.stages]
        return [kv[each.start : each.stop] for each in layers]

    def memory_analysis(self) -> Any:
        """XLA's analysis of the program that takes most memory."""
        analyses = [each.memory_analysis() for each in self.compiled]
        known = [each for each in analyses if each is not None]
        return max(known, key=lambda each: each.temp_size_in_bytes, default=None)

    def as_text(self) -> str:
        """The programs' text, one after the other."""
        return "\n\n".join(each.as_text() or "" for each in self.compiled)


class StagedStep(StagedCall):
    """A step: called as the program of `steps.prefill_step` or `steps.decode_step` is."""

    def __call__(
        self,
        params: Mapping[str, Any],
        kv: KVCache,
        given: StagedBatch | jax.Array,
        last_tokens: jax.Array,
        *peers: jax.Array,
    ) -> tuple[Any, ...]:
        """Launch every stage's part.

        Args:
            params: the whole tree.
            kv: the pages of all layers; donated.
            given: the step's batch; padding may lie anywhere on the host.
            last_tokens: newest token of each slot, on the last stage.
            peers: each stage's, or none.
        """
        batches, tokens = self._placed(given, last_tokens)
        x, results, pages = None, (), []
        for i, (stage, own, call) in enumerate(
            zip(self.stages, self.pages(kv), self.compiled, strict=True)
        ):
            if x is not None:
                x = jax.device_put(x, self.wholes[i])
            reads = tokens if stage.stage.is_first else last_tokens
            reads = reads if stage.stage.is_first or stage.stage.is_last else None
            mine = (stage.own_params(params), own, batches[i], x, reads, *peers[i : i + 1])
            written, *results = call(*mine)
            self.settle(results[0])
            pages += written
            x = results[0]
        return (tuple(pages), *results)

    def _placed(
        self, given: StagedBatch | jax.Array, last_tokens: jax.Array
    ) -> tuple[Sequence[jax.Array], jax.Array]:
        """The batch on every stage, and the tokens that the first one feeds."""
        if isinstance(given, StagedBatch):
            return given.arrays, given.tokens(self.key, last_tokens)
        packed = np.asarray(given)
        hosts = [stage.on_host(packed.shape).sharding for stage in self.stages]
        first = jax.device_put(last_tokens, self.wholes[0])
        return [upload(packed, host) for host in hosts], first


class StagedCopies(StagedCall):
    """Copies of blocks in every layer: called as the program of `copy_steps.copy_blocks` is."""

    def __call__(self, kv: KVCache, pairs: jax.Array) -> KVCache:
        """Copy them on each stage, behind the step that was launched before."""
        copied: list[Any] = []
        for own, call, whole in zip(self.pages(kv), self.compiled, self.wholes, strict=True):
            copied += call(own, jax.device_put(pairs, whole))
            self.settle(copied[-1])
        return tuple(copied)


STAGED_CALLS: dict[type, type[StagedCall]] = {
    **dict.fromkeys(STEP_PARTS, StagedStep),
    CopyBlocksKind.key_type: StagedCopies,
}
"""Of programs that every stage has, by the class of their keys; all others run on the last one."""
