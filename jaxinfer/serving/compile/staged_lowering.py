"""Lowers a pipeline's programs: those that every stage has, stage by stage."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax

from jaxinfer.serving.compile.compilation import Lowered
from jaxinfer.serving.compile.jax_settings import JaxSettings
from jaxinfer.serving.compile.lowering import Lowering
from jaxinfer.serving.programs.kinds.kind import ProgramKey
from jaxinfer.serving.programs.pipeline.stage_programs import PipelinePrograms
from jaxinfer.serving.programs.pipeline.staged_calls import STAGED_CALLS
from jaxinfer.serving.programs.programs import Programs


class StagedLowering(Lowering):
    """Lowers a pipeline's programs; worker processes trace those of each stage."""

    def trace(self, programs: Programs, keys: Sequence[ProgramKey]) -> None:
        """As of `Lowering`, on the last stage, which alone has programs of one stage."""
        if programs.samples:
            super().trace(programs, keys)

    def as_ready(self, programs: Programs, keys: Sequence[ProgramKey]) -> Iterator[ProgramKey]:
        """As of `Lowering`: each key once the programs of all stages can be lowered."""
        wanted: dict[ProgramKey, set[str]] = {}
        for stage in programs.stages:
            is_last = stage is programs.stages[-1]
            own = [key for key in keys if is_last or type(key) in STAGED_CALLS]
            missing = self._missing(stage, own)
            self._hand_over(stage, missing)
            for key, identity in missing.items():
                wanted.setdefault(key, set()).add(identity)
        yield from (key for key in keys if key not in wanted)
        owners = {identity: key for key, own in wanted.items() for identity in own}
        while owners and self._workers is not None:
            identity = self._workers.next_traced()
            if (key := owners.pop(identity, None)) is not None:
                wanted[key].discard(identity)
                if not wanted[key]:
                    yield key

    def lower(self, programs: Programs, key: ProgramKey, options: Mapping[str, Any]) -> Lowered:
        """Lower a program of a stage, or what stands for one of all stages."""
        if not isinstance(programs, PipelinePrograms):
            return super().lower(programs, key, options)
        if type(key) not in STAGED_CALLS:
            return super().lower(programs.stages[-1], key, options)
        return _StagedLowered(self, programs, key, options)


class _StagedLowered:
    """Programs of all stages, lowered, which compile to a call of all."""

    def __init__(
        self,
        lowering: Lowering,
        programs: PipelinePrograms,
        key: ProgramKey,
        options: Mapping[str, Any],
    ) -> None:
        self._lowering, self._programs, self._key = lowering, programs, key
        self._options = options
        self._lowered = [lowering.lower(stage, key, options) for stage in programs.stages]

    def compile(self, compiler_options: dict[str, Any] | None = None) -> Any:
        """Compile each, side by side, or read its executable.

        Raises:
            UnreadableExecutableError: as of `Lowered`.
        """
        settings = JaxSettings.here()

        def compiled(lowered: Lowered) -> jax.stages.Compiled:
            with settings.held():
                return lowered.compile(compiler_options)

        with ThreadPoolExecutor(len(self._lowered)) as pool:
            found = list(pool.map(compiled, self._lowered))
        context = self._programs.context
        # Programs with collectives deadlock on few cores where several run at once.
        is_emulated = context.mesh.devices.flat[0].platform == "cpu" and context.mesh.size > 1
        settle = jax.block_until_ready if is_emulated else lambda array: array
        return STAGED_CALLS[type(self._key)](self._key, self._programs, found, settle)
