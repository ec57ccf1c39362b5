"""One engine: takes requests, and is made of a loop, its recovery and its lifecycle."""

import collections
import dataclasses
import random
import time
from collections.abc import Callable

from jaxinfer.errors import StepError
from jaxinfer.model.text.tokenizer import Tokenizer
from jaxinfer.outputs import RequestOutput
from jaxinfer.serving.constraints.constraint import Constraint, ConstraintSource
from jaxinfer.serving.engine.host_dependent import HostDependentRows
from jaxinfer.serving.engine.lifecycle import Lifecycle
from jaxinfer.serving.engine.loop import Loop
from jaxinfer.serving.engine.metrics import RequestCounts
from jaxinfer.serving.engine.open_requests import OpenRequests
from jaxinfer.serving.engine.recovery import InFlight, Recovery
from jaxinfer.serving.engine.request_table import AnyGroup
from jaxinfer.serving.engine.step_clock import StepClock
from jaxinfer.serving.engine.step_counts import StepCounts
from jaxinfer.serving.engine.step_runner import StepRunner
from jaxinfer.serving.requests.draft_record import DraftCounts
from jaxinfer.serving.requests.new_request import NewRequest
from jaxinfer.serving.requests.request import Request
from jaxinfer.serving.requests.request_group import RequestGroup
from jaxinfer.serving.requests.token_group import TokenGroup
from jaxinfer.serving.scheduler.pacing import Pacing
from jaxinfer.serving.scheduler.scheduler import Scheduler


class Engine:
    """Schedules requests and runs them on a device; not thread-safe.

    The host reads each step's tokens one step later, or two (`Pacing.most_ahead`): while the device
    runs a step, the host reads and reports an earlier one. If a row is host-dependent, because a
    constraint reads its tokens on the host, the step's forward pass is launched as usual, and its
    tokens are drawn after the previous step has been read, unless the host knows these tokens
    already.

    A step that raises leaves the KV cache invalid. The cache is allocated anew and every running
    request is recomputed; if that raises too, `Quarantine` finds the request at fault, which ends
    with the finish reason "error" and its cause. The same happens to a request whose text,
    log-probabilities or sink raise. No other request loses a token.

    Args:
        seed: source of the seeds of requests that have none.
        pacing: limits on the tokens of a step; by default it has as many as fit.
        constraints: makes those of requests; None makes none.

    Attributes:
        loop: runs the steps.
        recovery: of steps that raise.
        lifecycle: new weights, sleep and the end, between steps.
    """

    def __init__(
        self,
        runner: StepRunner,
        scheduler: Scheduler,
        tokenizer: Tokenizer | None = None,
        *,
        seed: int = 0,
        pacing: Pacing | None = None,
        constraints: ConstraintSource | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._scheduler = scheduler
        self._tokenizer = tokenizer
        self._seeds = random.Random(seed)
        self._pacing = pacing or Pacing()
        self._constraints = constraints
        self._clock = clock
        self._requests = OpenRequests(scheduler, clock)
        self._host_dependent = rows = HostDependentRows(scheduler, self._requests)
        self._step_clock = StepClock(scheduler.pool, clock)
        scheduler.tiers.watch(self._step_clock.counts)
        flying: InFlight = collections.deque()
        self.recovery = Recovery(runner, scheduler, self._requests, rows, flying)
        self.loop = Loop(
            runner,
            scheduler,
            self._requests,
            rows,
            self.recovery,
            flying,
            self._pacing,
            self._step_clock,
        )
        self.lifecycle = Lifecycle(
            runner, scheduler, self._requests, self.loop, self.recovery, flying
        )
        # Methods of the parts, by the names of `Steppable`.
        self.step, self.observe = self.loop.step, self.loop.observe
        self.check_alive, self.give_up = self.loop.check_alive, self.recovery.give_up
        self.update_params, self.close = self.lifecycle.update_params, self.lifecycle.close
        self.prepare_sleep, self.sleep = self.lifecycle.prepare_sleep, self.lifecycle.sleep
        self.wake_params = self.lifecycle.wake_params
        self.wake_cache = self.lifecycle.wake_cache

    @property
    def has_unfinished(self) -> bool:
        """Whether a request is running or waiting, or an output has not been taken."""
        return bool(self._requests)

    @property
    def failure(self) -> StepError | None:
        """The error that made the engine refuse requests for good, or None; thread-safe."""
        return self.recovery.failure

    @property
    def weight_version(self) -> int:
        """The number of weight swaps so far; thread-safe."""
        return self._requests.weight_version

    def counts(self) -> RequestCounts:
        """A snapshot of the engine's counters and gauges; thread-safe."""
        counts, scheduler = self._requests.table.counts, self._scheduler
        pool = scheduler.pool
        return dataclasses.replace(
            counts,
            queried_tokens=counts.prompt_tokens if pool.enable_prefix_caching else 0,
            finished=dict(counts.finished),
            generation_tokens=scheduler.num_generated_tokens,
            preemptions=scheduler.num_preemptions,
            running=scheduler.num_running,
            waiting=scheduler.num_waiting,
            used_blocks=pool.num_usable_blocks - pool.num_free_blocks,
            usable_blocks=pool.num_usable_blocks,
            steps=self._step_clock.counts.plus(StepCounts()),
            drafts=scheduler.draft_counts.plus(DraftCounts()),
            tiers=scheduler.tiers.counts(),
        )

    def add(self, request: NewRequest) -> None:
        """Enqueue a request.

        Raises:
            ValueError: the key is in use, or the request can never fit.
            StepError: the engine has failed for good.
        """
        self.check_alive()
        self.enqueue(self.prepare(request, seed=self._seeds.getrandbits(63)))

    def prepare(self, request: NewRequest, *, seed: int) -> AnyGroup:
        """Check a request and prepare it for `enqueue`; safe beside a step in another thread.

        Raises:
            ValueError: the key is in use, the request can never fit, or its constraint is wrong.
            MissingPackageError: a package that its constraint needs is not installed.
        """
        if request.key in self._requests:
            raise ValueError(f"request id {request.key!r} is in use by an unfinished request")
        group = self._group(request, seed)
        for completion in group.completions:
            self._scheduler.check(completion.request)
            completion.request.constraint = self._constraint(request)
        return group

    def enqueue(self, group: AnyGroup) -> None:
        """Add a request from `prepare` to the waiting queue.

        If the engine has failed for good in the meantime, the request ends with the reason "error".
        """
        self._requests.add(group)
        for completion in group.completions:
            if completion.request.constraint is not None:
                self._host_dependent.requests.append(completion.request)
        self._pacing.note_arrival()
        if self.failure is not None:
            self.give_up(str(self.failure))

    def num_cached_tokens(self, request: NewRequest) -> int:
        """The number of leading prompt tokens found in the prefix cache; thread-safe."""
        return self._scheduler.num_cached_tokens(Request(request.key, request, request.params))

    def abort(self, request_id: str) -> bool:
        """End a request now, in any state, with a last output; False if none is unfinished."""
        return self._requests.abort(request_id)

    def drain(self) -> None:
        """Read all steps that are in flight; between two steps."""
        self.loop.read_steps(leave=0)

    def take_outputs(self) -> list[RequestOutput]:
        """Outputs of requests without a sink, since the last call."""
        return self._requests.take_outputs()

    def reset_prefix_cache(self) -> None:
        """Invalidate all cached prefixes; running requests keep their blocks."""
        self._scheduler.invalidate_prefix_cache()

    @property
    def can_sleep(self) -> bool:
        """Always true: all device memory belongs to this process."""
        return True

    def _group(self, request: NewRequest, seed: int) -> AnyGroup:
        """The state of a request's completions: of tokens alone, or of texts too."""
        if request.kind == "tokens":
            return TokenGroup(request, seed=seed)
        now = self._clock()
        return RequestGroup(request, seed=seed, arrival_time=now, tokenizer=self._tokenizer)

    def _constraint(self, request: NewRequest) -> Constraint | None:
        """What limits the request's tokens, if anything does."""
        if self._constraints is None or not request.params.has_constraints:
            return None
        answer = request.answer
        stage, calls = (answer.stage, answer.has_calls) if answer else (None, False)
        return self._constraints.make(request.params, request.prompt.packed, stage, calls=calls)
