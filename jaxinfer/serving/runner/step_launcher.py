"""Launches the programs of steps on the arrays that the engine keeps."""

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, cast

import jax

from jaxinfer.serving.prefix_tiers.transfers import Transfers
from jaxinfer.serving.programs.kinds.block_rows import BlockRowCopies
from jaxinfer.serving.programs.kinds.kind import ProgramKey
from jaxinfer.serving.programs.kinds.registry import step_kind_of
from jaxinfer.serving.programs.kinds.write_adapter import write_adapter
from jaxinfer.serving.programs.resident import Resident, StepOutputs
from jaxinfer.serving.programs.upload import upload
from jaxinfer.serving.runner import kv_cache
from jaxinfer.serving.runner.batch import Batch
from jaxinfer.serving.runner.engine_plan import EnginePlan
from jaxinfer.serving.runner.in_flight import InFlightStep, UnsampledStep
from jaxinfer.serving.runner.slot_writes import SlotWriter
from jaxinfer.serving.runner.swap import HostBlocks
from jaxinfer.serving.runner.watchdog import Watchdog
from jaxinfer.serving.scheduler.schedule import Schedule
from jaxinfer.serving.slots.slot_updates import EditsUpdate, MasksUpdate


class StepLauncher:
    """Launches steps, one call at a time, from any thread.

    Args:
        transfers: of an engine with prefix tiers.
        await_each: whether devices get one program at a time, as emulated ones must: collectives
            that wait for each other on few cores can deadlock.

    Attributes:
        resident: the arrays that the engine keeps, which launches replace; None for arrays that
            sleep or are not allocated yet.
        launched: for recordings: the list that launched programs are appended to.
    """

    def __init__(
        self,
        resident: Resident,
        plan: EnginePlan,
        host_blocks: HostBlocks,
        transfers: Transfers | None,
        watchdog: Watchdog,
        *,
        await_each: bool,
    ) -> None:
        self.resident = resident
        self.launched: list[tuple[ProgramKey, jax.stages.Compiled]] | None = None
        self._compiled = plan.compiled
        self._host_blocks = host_blocks
        self._transfers: Any = transfers  # None where no schedule has tier copies
        self._watchdog, self._await_each = watchdog, await_each
        self._whole = whole = plan.programs.last_tokens.sharding
        self._inputs = plan.host_inputs
        self._settle = jax.block_until_ready if await_each else lambda array: array
        self._upload = lambda arrays: upload(arrays, whole)
        self._writer = SlotWriter(plan.compiled, self._upload, self._settle)

    def launch(self, schedule: Schedule, batch: Batch) -> InFlightStep | UnsampledStep:
        """Write adapters, swap blocks, write slots, run, and sample without host-dependent rows.

        Raises:
            Exception: a program can't be compiled or launched.
        """
        if missing := [key for key in batch.programs if key not in self._compiled]:
            self._compiled.compile_now(missing)
        for slot, adapter in schedule.adapter_loads:
            write_adapter(self.resident.params, slot, adapter, self.program, self._whole)
        for copies in schedule.tier_copies:
            self.block_rows.copy_out(self.resident.kv, copies, self._transfers)
        if schedule.swap_out or schedule.swap_in:
            pairs = schedule.swap_out, schedule.swap_in
            kv = self._host_blocks.swap(self.resident.kv, *pairs, self.block_rows)
            self.resident = self.resident._replace(kv=kv)
        for copies in schedule.tier_copies:
            kv = self.block_rows.copy_back(self.resident.kv, copies, self._transfers)
            self.resident = self.resident._replace(kv=kv)
        if batch.edits or batch.counts or batch.draft_writes:
            self._write_slots(self._writer.edits, batch.edits)
            self._write_slots(self._writer.counts, batch.counts)
            drafts = self._writer.drafts(self.resident.drafts, batch.draft_writes)
            self.resident = self.resident._replace(drafts=drafts)
        outputs = self._run(batch.forward, StepOutputs(), self._inputs.write(batch.packed))
        if schedule.block_copies:
            kv, copies = self.resident.kv, schedule.block_copies
            kv = kv_cache.copy_blocks(kv, copies, self.program, self._whole)
            self.resident = self.resident._replace(kv=kv)
        step = UnsampledStep(schedule, batch, outputs)
        return step if schedule.host_dependent else self._sample(step)

    def sample(
        self,
        unsampled: Future[InFlightStep | UnsampledStep],
        edits: Sequence[EditsUpdate],
        masks: Sequence[MasksUpdate],
    ) -> InFlightStep:
        """Write the updates of host-dependent rows' slots, and sample their step."""
        self._write_slots(self._writer.edits, edits)
        self._write_slots(self._writer.masks, masks)
        return self._sample(cast(UnsampledStep, unsampled.result()))

    def clear(self) -> None:
        """Drop the arrays that batches were passed in, after a step that raised."""
        self._inputs.clear()

    def await_if_emulated(self, array: jax.Array) -> None:
        """Wait for an array if devices get one program at a time."""
        if self._await_each:
            array.block_until_ready()

    def _sample(self, step: UnsampledStep) -> InFlightStep:
        schedule, batch, outputs = step
        if batch.draw is not None:
            outputs = self._run(batch.draw, outputs, batch.labels)
        sampled = outputs.newest
        self._inputs.read_by(sampled)  # small arrays kept on a device would move others
        readouts = {
            each: each.launch(self.resident.head, outputs, self._upload(packed), self.program)
            for each, packed in batch.readouts.items()
        }
        for values in readouts.values():
            self.await_if_emulated(values)
            values.copy_to_host_async()
        samples = outputs.sampled is not None
        return InFlightStep(sampled, readouts, schedule.rows, samples=samples, mode=batch.mode)

    def _run(self, key: ProgramKey, before: StepOutputs, given: Any) -> StepOutputs:
        self.resident, outputs = step_kind_of(key).run(
            key, self.program(key), self.resident, before, given
        )
        self._watchdog.expect(outputs.newest, key)
        self.await_if_emulated(outputs.newest)
        return outputs

    @property
    def block_rows(self) -> BlockRowCopies:
        """Copies blocks out of the pages and into them. Kept, it and this would hold each other."""
        return BlockRowCopies(self.program, self._upload, self._settle)

    def program(self, key: ProgramKey) -> jax.stages.Compiled:
        """The compiled program of a key."""
        compiled = self._compiled[key]
        if self.launched is not None:
            self.launched.append((key, compiled))
        return compiled

    def _write_slots(self, write: Any, updates: Sequence[Any]) -> None:
        self.resident = self.resident._replace(slots=write(self.resident.slots, updates))
