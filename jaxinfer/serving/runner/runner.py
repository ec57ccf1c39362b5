"""Owns the device: its programs, pages and parameters; launches steps and reads them later."""

import contextlib
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import jax
import numpy as np

from jaxinfer.config import EngineConfig
from jaxinfer.model.text.tokenizer import Tokenizer
from jaxinfer.serving.compile.jax_settings import JaxSettings
from jaxinfer.serving.prefix_tiers.transfers import Transfers
from jaxinfer.serving.programs import peer_buffers as peer_buffers
from jaxinfer.serving.programs.kinds.kind import ProgramKey
from jaxinfer.serving.programs.kinds.speculative_decode import draft_sizes
from jaxinfer.serving.programs.resident import Resident
from jaxinfer.serving.requests.result import StepResult, unpack_step
from jaxinfer.serving.requests.scores.unpack import UNPACK
from jaxinfer.serving.runner import kv_cache
from jaxinfer.serving.runner.ahead_of_time import compile_ahead
from jaxinfer.serving.runner.batch_builder import BatchBuilder
from jaxinfer.serving.runner.device_params import ParamsWriter
from jaxinfer.serving.runner.draft_texts import draft_texts
from jaxinfer.serving.runner.engine_plan import EnginePlan
from jaxinfer.serving.runner.in_flight import InFlightStep, Launched, UnsampledStep, unsampled
from jaxinfer.serving.runner.runner_memory import RunnerMemory
from jaxinfer.serving.runner.step_launcher import StepLauncher
from jaxinfer.serving.runner.swap import HostBlocks
from jaxinfer.serving.runner.watchdog import Watchdog
from jaxinfer.serving.runner.weights import Weights
from jaxinfer.serving.scheduler.multi_step import MultiStep
from jaxinfer.serving.scheduler.schedule import Schedule
from jaxinfer.serving.scheduler.speculation import Speculation
from jaxinfer.serving.slots.request_sampling import request_sampling
from jaxinfer.serving.slots.step_masks import StepConstraints
from jaxinfer.serving.threads.worker_thread import WorkerThread
from jaxinfer.spans import EnterSpan
from jaxinfer.startup_report import StartUpTimes


class Runner:
    """One model on its devices.

    Steps run in the order of `launch`; a later launch does not wait for an earlier one. Not
    thread-safe.

    Args:
        params: the parameter tree, placed as `plan.programs` wants it; used without a copy.
        plan: the engine's plan; closed with the runner, or if the runner can't be made.
        eos_token_ids: tokens that min_tokens bans.
        tokenizer: needed for bad words only.
        owns_params: whether the runner alone holds the parameters, so that they may be overwritten.
        transfers: to and from prefix tiers; None without any.

    Attributes:
        programs: describes its programs.
        launcher: launches programs, in `launches`, and holds the arrays that they run on.
        before_free: is given the KV cache before its memory is freed, if there is one.
        prepare: from new arrays, the cache first, makes those that steps begin with.
        num_kv_blocks: P, block 0 included.
        num_host_blocks: blocks of host memory for swapping.
        transfers: as given.
        compiles_ahead: whether `compile_all` is wanted before the first request.
        speculation: the steps that have drafts.
        span: for recordings: the span of packing a step.

    Raises:
        CapacityError: there is too little host memory for the swap space.
    """

    def __init__(
        self,
        params: Mapping[str, Any],
        plan: EnginePlan,
        config: EngineConfig,
        *,
        eos_token_ids: Sequence[int] = (),
        tokenizer: Tokenizer | None = None,
        owns_params: bool = False,
        host_blocks: HostBlocks,
        transfers: Transfers | None = None,
    ) -> None:
        self._config, self._plan = config, plan
        self.programs, self._buckets = plan.programs, plan.buckets
        self._compiled, self._lowering = plan.compiled, plan.lowering
        context = plan.programs.context
        self._mesh = plan.programs.mesh
        self.weights = Weights(params, plan.programs, owned=owns_params)
        self._compile_s = self._allocate_s = 0.0
        self.report = plan.report
        self.memory = RunnerMemory(plan, self._mesh.local_devices)
        self.num_kv_blocks = plan.report.num_kv_blocks
        self.max_model_len = plan.report.max_model_len
        self.max_num_batched_tokens = config.token_budget(plan.platform)
        self.transfers, self._host_blocks = transfers, host_blocks
        self.num_host_blocks = host_blocks.num_blocks
        free_logprobs = config.free_logprobs(has_custom_functions=context.has_custom_functions)
        self._builder = BatchBuilder(
            plan.buckets,
            max_num_seqs=config.max_num_seqs,
            block_size=config.block_tokens,
            vocab_size=context.config.vocab_size,
            prepare=functools.partial(
                request_sampling,
                vocab_size=context.config.vocab_size,
                eos_token_ids=eos_token_ids,
                tokenizer=tokenizer,
                free_logprobs=free_logprobs,
            ),
            draft_texts=draft_texts(config.speculative_config, tokenizer),
        )
        self.speculation = Speculation(draft_sizes(plan.buckets), free_logprobs)
        self._is_one_process = plan.programs.last_tokens.sharding.is_fully_addressable
        device = self._mesh.local_devices[0]
        self._device_name = f"{device} ({device.device_kind})"
        self._watchdog = Watchdog(config.step_time_limit(plan.platform), self._device_name)
        self._await_each = plan.platform == "cpu" and context.mesh.devices.size > 1
        # XLA prepares and starts a program without the interpreter's lock. For a step of few rows,
        # that takes the host as long as the step takes on the device.
        self.launches = WorkerThread("jaxinfer-launches", JaxSettings.here().held)
        self.launcher = StepLauncher(
            Resident(params, self.weights.head),
            plan,
            host_blocks,
            transfers,
            self._watchdog,
            await_each=self._await_each,
        )
        self.span: EnterSpan = contextlib.nullcontext
        self.before_free: Callable[[Any], None] = lambda kv: None
        self.prepare: Callable[[kv_cache.Arrays], kv_cache.Arrays] = lambda arrays: arrays
        self._peer_buffers: list[peer_buffers.PeerBuffers] = []
        self.compiles_ahead = config.compiles_ahead(plan.platform)
        if not self.compiles_ahead:
            self.reset_cache()

    @property
    def resident(self) -> Resident:
        """The arrays that the engine keeps."""
        return self.launcher.resident

    @property
    def wanted_params(self) -> Mapping[str, Any]:
        """The required parameters: a tree of `jax.ShapeDtypeStruct` with shardings."""
        return self.weights.wanted

    @property
    def launched(self) -> list[tuple[ProgramKey, jax.stages.Compiled]] | None:
        """For recordings: a list that launched programs are appended to, or None."""
        return self.launcher.launched

    @launched.setter
    def launched(self, into: list[tuple[ProgramKey, jax.stages.Compiled]] | None) -> None:
        self.launcher.launched = into

    @property
    def num_compilations(self) -> int:
        """Programs that XLA has built in this process since its planning began.

        Raises:
            RuntimeError: see `CompilationCounter.count`.
        """
        return self._plan.counter.count

    @property
    def seconds_waited_for_programs(self) -> float:
        """Seconds that steps have waited for programs to compile at their first use."""
        return self._compiled.seconds_waited

    @property
    def multi_step(self) -> MultiStep:
        """The launches that may have several decode steps."""
        return MultiStep(self._buckets.num_steps, self._buckets.most_multi_step_rows)

    def compile_all(self) -> None:
        """Compile all programs, so that nothing compiles while requests run.

        The pages are allocated afterwards, because XLA's autotuning takes device memory. A single
        accelerator then runs every program once to warm it up. If all executables were on disk, the
        pages are allocated first, and each program runs while others are still read.
        """
        start, allocate_s = time.perf_counter(), self._allocate_s
        compile_ahead(
            self._plan,
            self._config,
            self.launcher,
            swaps=self.num_host_blocks > 0,
            when_compiled=self._allocate_if_needed,
            device_name=self._device_name,
        )
        self._compile_s = time.perf_counter() - start - (self._allocate_s - allocate_s)

    def start_up_times(self, load_s: float) -> StartUpTimes:
        """The times of the start's phases, up to now, `load_s` of them before this runner."""
        return StartUpTimes(
            load_s=load_s,
            plan_s=self._plan.seconds,
            compile_s=self._compile_s,
            allocate_s=self._allocate_s,
            lower_s=self._lowering.seconds,
            xla_s=self._plan.counter.seconds,
            num_traced=self._lowering.num_traced,
            num_read=self._lowering.num_read,
        )

    def launch(self, schedule: Schedule) -> Launched:
        """Start a step and return at once; its tokens stay on the device for the next one.

        Args:
            schedule: from the scheduler; blocks are swapped first, out and then in. With
                host-dependent rows, pass the result to `sample` before another launch.

        Raises:
            Exception: the step fits no program. Errors of the device are raised by `fetch`.
        """
        if self.resident.kv is None:
            self.reset_cache()
        with self.span("pack"):
            batch = self._builder.build(schedule)
        return self._submit(schedule, self.launcher.launch, schedule, batch)

    def sample(self, step: Launched, constraints: StepConstraints) -> Launched:
        """Sample a step with host-dependent rows, once all earlier tokens are read."""
        schedule, unsampled = step
        updates = self._builder.slot_edits.constrain(schedule, constraints)
        return self._submit(schedule, self.launcher.sample, unsampled, *updates)

    def fetch(self, step: Launched) -> StepResult:
        """Wait for a launched step and read it.

        Raises:
            Exception: the device's own, of that step. The pages may then be gone: call
                `reset_cache`.
        """
        read = cast(InFlightStep, step.result.result())
        sampled = np.asarray(read.sampled) if read.samples else unsampled(read)
        readouts = {
            readout.name: readout.unpack(np.asarray(values), read.rows)
            for readout, values in read.readouts.items()
        }
        return unpack_step(sampled, readouts, num_rows=len(read.rows), unpack=UNPACK[read.mode])

    def reset_cache(self) -> None:
        """Allocate the pages anew, after a step that raised has destroyed the donated ones.

        Raises:
            RuntimeError: the mesh spans processes, which may not all have failed in that step.
        """
        if self.resident.kv is not None and not self._is_one_process:
            raise RuntimeError("several processes can't go back to the same step")
        self.launches.wait()
        start = time.perf_counter()
        # First, because that waits for all GPUs to finish steps that write to the old ones.
        fresh = [peer_buffers.allocate(peers) for peers in self.programs.peers]
        self._free_cache()
        self.weights.empty_adapters()
        disk = self._config.compilation_cache_dir
        arrays = self.prepare(kv_cache.allocate(self.programs, disk))
        self._peer_buffers, peers = fresh, tuple(each.peers for each in fresh)
        self.launcher.resident = Resident(self.weights.params, self.weights.head, *arrays, peers)
        with self._watchdog.watching("the allocation of its KV cache"):
            jax.block_until_ready(self.resident.kv)
        self._allocate_s = time.perf_counter() - start
        self._builder.clear()
        self.launcher.clear()
        self.memory.mark("KV cache allocated")

    def await_launches(self) -> None:
        """Return when all that was to be launched has been, copies of blocks too."""
        self.launches.wait()

    def update_params(self, params: Mapping[str, Any] | ParamsWriter) -> None:
        """Use other weights from the next launch on.

        A tree is used without a copy and stays its owner's. A writer's parameters are owned by the
        runner, and the next writer reuses their memory.

        Raises:
            ValueError: names the first leaf whose path, shape, dtype or sharding differs.
            TypeError: a leaf is no array.
            StepError: writing failed when the old weights were gone already.
        """
        self.launches.wait()
        self.weights.update(params)
        self._use_weights()

    def sleep(self, *, keep_params: bool) -> None:
        """Free the memory of parameters, pages and slots; no step may be in flight.

        The caller's own parameters are not deleted, but no longer used either. With
        `keep_params` a copy stays in pinned host memory, for `wake_params`.

        Raises:
            Exception: there is too little host memory; nothing has changed.
        """
        self.launches.wait()
        self.weights.sleep(keep=keep_params)
        self._free_cache()
        self._use_weights()

    def wake_params(self) -> None:
        """Take the parameters back from host memory, if any are there.

        Raises:
            Exception: there is too little device memory; the copy on the host stays.
        """
        self.launches.wait()
        self.weights.wake()
        self._use_weights()

    def close(self) -> None:
        """Free the pages and forget the parameters; may be called again."""
        self._free_cache()
        self.launcher.clear()  # else a garbage collection frees the arrays of batches, much later
        self.launches.close()
        self._host_blocks.close()
        self.weights.close()
        self._use_weights()
        self._plan.close()
        self._watchdog.close()

    def _use_weights(self) -> None:
        weights = self.weights
        self.launcher.resident = self.resident._replace(params=weights.params, head=weights.head)
        if self._await_each and weights.params is not None:
            jax.block_until_ready(weights.params)

    def _free_cache(self) -> None:
        self.launches.wait()
        self.before_free((kept := self.resident).kv)
        kv_cache.free(kept.kv, kept.last_tokens, kept.slots, kept.drafts, self._peer_buffers)
        self.launcher.resident = Resident(kept.params, kept.head)
        self._peer_buffers = []

    def _allocate_if_needed(self) -> None:
        self.memory.mark("programs compiled")
        if self.resident.kv is None:
            self.reset_cache()

    def _submit[**P](
        self,
        schedule: Schedule,
        launch: Callable[P, InFlightStep | UnsampledStep],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Launched:
        in_place = self._await_each or self._config.eager or self.launched is not None
        run = self.launches.run if in_place else self.launches.submit
        return Launched(schedule, run(launch, *args, **kwargs))
