"""The loop: a step schedules, runs, reads the step before, and collects what callers see."""

import collections
import logging
import random
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from jaxinfer.errors import StepError
from jaxinfer.model.tokenizer import Tokenizer
from jaxinfer.outputs import RequestOutput
from jaxinfer.sampling_params import SamplingParams
from jaxinfer.serving.completion import Completion
from jaxinfer.serving.inputs import Prompt
from jaxinfer.serving.request import Request
from jaxinfer.serving.request_group import OutputKind, OutputSink, RequestGroup
from jaxinfer.serving.result import StepResult
from jaxinfer.serving.schedule import RowUpdate, Schedule
from jaxinfer.serving.scheduler import Scheduler
from jaxinfer.serving.step_runner import StepRunner

_MAX_FAILURES = 2
_MOST_KEPT_WAITING = 64
_NOT_FINITE = "the logits were not finite (NaN or infinity), or no token was allowed"

logger = logging.getLogger("jaxinfer")


class _Member(NamedTuple):
    group: RequestGroup
    completion: Completion


class Engine:
    """Runs requests on a runner; one thread at a time.

    Tokens are read one step late: while the device runs a step, the host reads and reports the one
    before. Only when a request's sampling needs its own tokens on the host (mode "full") is every
    step read before the next is planned.

    A step that raises has destroyed the cache. It is allocated anew, everything that ran is
    computed again, and requests that were in two such steps end with the reason "error".

    Args:
        runner: the device.
        scheduler: decides who runs.
        tokenizer: None for token ids only.
        seed: what requests without a seed of their own derive theirs from.
        burst_steps: tokens decoded a launch while nobody waits, for so many running requests; 1
            for no bursts.
        clock: seconds; for metrics.
    """

    def __init__(
        self,
        runner: StepRunner,
        scheduler: Scheduler,
        tokenizer: Tokenizer | None = None,
        *,
        seed: int = 0,
        burst_steps: Callable[[int], int] = lambda rows: 1,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._runner = runner
        self._scheduler = scheduler
        self._tokenizer = tokenizer
        self._seeds = random.Random(seed)
        self._burst_steps = burst_steps
        self._clock = clock
        self._groups: dict[str, RequestGroup] = {}
        self._members: dict[str, _Member] = {}
        self._synchronous: set[str] = set()
        self._changed: dict[str, RequestGroup] = {}
        self._in_flight: collections.deque[tuple[Schedule, Any]] = collections.deque()
        self._outputs: list[RequestOutput] = []
        self._failure: StepError | None = None
        self._is_closed = False

    @property
    def has_unfinished(self) -> bool:
        """Whether a request runs, waits, or has outputs that nobody took yet."""
        return bool(self._groups or self._outputs)

    def add(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams,
        *,
        kind: OutputKind = "cumulative",
        sink: OutputSink | None = None,
        prefill_only: bool = False,
    ) -> None:
        """Enqueue a request.

        Raises:
            ValueError: the id is in use, or the request can never fit.
            StepError: the engine has failed for good.
        """
        self._check_alive()
        group = self.prepare(
            request_id,
            prompt,
            params,
            seed=self._seeds.getrandbits(63),
            kind=kind,
            sink=sink,
            prefill_only=prefill_only,
        )
        self.enqueue(group)

    def prepare(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams,
        *,
        seed: int,
        kind: OutputKind = "cumulative",
        sink: OutputSink | None = None,
        prefill_only: bool = False,
    ) -> RequestGroup:
        """Check a request and get it ready for `enqueue`; any thread may, while others step.

        Args:
            request_id: the caller's name for it.
            prompt: what is completed.
            params: how.
            seed: used if `params` has none.
            kind: see `OutputKind`.
            sink: receives the outputs; None leaves them to `take_outputs`.
            prefill_only: sample nothing.

        Raises:
            ValueError: the id is in use, or the request can never fit.
        """
        if request_id in self._groups:
            raise ValueError(f"request id {request_id!r} is in use by an unfinished request")
        group = RequestGroup(
            request_id,
            prompt,
            params,
            seed=seed,
            kind=kind,
            arrival_time=self._clock(),
            tokenizer=self._tokenizer,
            sink=sink,
            prefill_only=prefill_only,
        )
        for completion in group.completions:
            self._scheduler.check(completion.request)
        return group

    def enqueue(self, group: RequestGroup) -> None:
        """Let a request from `prepare` wait for its turn.

        If the engine has failed for good since then, it ends with the reason "error".
        """
        for completion in group.completions:
            request = completion.request
            self._scheduler.add(request)
            self._members[request.request_id] = _Member(group, completion)
            if request.params.sampling_mode == "full":
                self._synchronous.add(request.request_id)
        self._groups[group.request_id] = group
        if self._failure is not None:
            self._give_up(str(self._failure))

    def num_cached_tokens(self, prompt: Prompt, params: SamplingParams) -> int:
        """Leading tokens of a prompt that the prefix cache holds; any thread may ask."""
        return self._scheduler.num_cached_tokens(
            Request("", prompt.token_ids, params, cache_salt=prompt.cache_salt)
        )

    def abort(self, request_id: str) -> bool:
        """End a request now, whatever its state; its sink gets a last output.

        Returns:
            Whether there was an unfinished request of that id.
        """
        group = self._groups.pop(request_id, None)
        if group is None:
            return False
        self._changed.pop(request_id, None)
        for completion in group.completions:
            if completion.finish_reason is None:
                self._end(completion.request, "abort")
            self._forget(completion.request)
        if group.sink is not None and (output := group.output(self._clock())) is not None:
            group.sink(output)
        return True

    def step(self) -> None:
        """Advance every request that can be: schedule, run, read the step before, collect.

        Raises:
            StepError: the device failed and could not be set up again; the engine is dead.
        """
        self._check_alive()
        try:
            if self._synchronous or self._first_tokens_would_wait():
                self._read_steps(leave=0)
            schedule = self._schedule()
            if schedule is not None:
                self._launch(schedule)
                self._scheduler.settle()
            self._read_steps(leave=0 if schedule is None else 1)
            self._collect()
        except KeyboardInterrupt:
            self._give_up("it was interrupted in the middle of a step")
            raise

    def take_outputs(self) -> list[RequestOutput]:
        """Outputs of requests without a sink, since the last call."""
        outputs, self._outputs = self._outputs, []
        return outputs

    def update_params(self, params: Any) -> None:
        """Swap the weights between two steps.

        Running requests go on with the keys and values they have; the prefix cache forgets all.

        Raises:
            ValueError: the tree differs from the present one; names the first leaf that does.
            TypeError: a leaf is no array.
        """
        self._check_alive()
        self._read_steps(leave=0)
        self._runner.update_params(params)
        self._scheduler.invalidate_prefix_cache()

    def reset_prefix_cache(self) -> None:
        """Stop finding what was computed so far; running requests keep their blocks."""
        self._scheduler.invalidate_prefix_cache()

    def close(self) -> None:
        """Abort everything and free the device memory; safe to call again."""
        for request_id in list(self._groups):
            self.abort(request_id)
        self._is_closed = True
        self._in_flight.clear()
        self._runner.close()

    def _schedule(self) -> Schedule | None:
        steps = 1 if self._synchronous else self._burst_steps(self._scheduler.num_running)
        schedule = self._scheduler.schedule(steps)
        if schedule is None and not self._in_flight and self._scheduler.has_unfinished:
            raise RuntimeError("the scheduler has unfinished requests and can run none of them")
        return schedule

    def _first_tokens_would_wait(self) -> bool:
        """Whether to read a prefill before the next launch, and not after it as usual.

        The launch of a burst takes the host as long as many a prefill takes the device: first
        tokens would lie there meanwhile. The device waits once a prompt for it, which is too dear
        when it keeps many others from going on.
        """
        if not self._in_flight or self._in_flight[-1][0].is_decode or self._scheduler.num_waiting:
            return False
        running = self._scheduler.num_running
        return running <= _MOST_KEPT_WAITING and self._burst_steps(running) > 1

    def _launch(self, schedule: Schedule) -> None:
        try:
            step = self._runner.launch(schedule)
        except Exception as error:  # whatever the device raises, requests must survive it
            self._read_steps(leave=0)  # what was sampled before the failure is good
            self._recover(schedule, error)
        else:
            self._in_flight.append((schedule, step))

    def _read_steps(self, *, leave: int) -> None:
        """Read launched steps, oldest first, until `leave` of them are in flight."""
        while len(self._in_flight) > leave:
            schedule, step = self._in_flight.popleft()
            try:
                result = self._runner.fetch(step)
            except Exception as error:  # as above; errors of a step often show up here
                self._recover(schedule, error)
                return
            self._postprocess(schedule, result)

    def _postprocess(self, schedule: Schedule, result: StepResult) -> None:
        """Hand a step's tokens to the scheduler and to the callers' completions."""
        if result.prompt is not None:
            self._score_prompts(schedule, result)
        sampled = result.sampled
        num_ok = None if sampled.ok.all() else result.num_ok
        now = self._clock()
        for update in self._scheduler.update(schedule, sampled.tokens.tolist(), num_ok):
            self._apply(update, result, now)

    def _apply(self, update: RowUpdate, result: StepResult, now: float) -> None:
        group, completion = self._members[update.request.request_id]
        completion.extend(update.token_ids, result.sampled, update.row)
        group.note_tokens(len(update.token_ids), now)
        reason = completion.finish_reason
        if reason is not None or group.kind != "final":
            self._changed[group.request_id] = group
        if reason is None:
            return
        if reason == "error":
            group.error = group.error or _NOT_FINITE
        # A stop string ends a request that the scheduler would go on with.
        self._scheduler.finish(update.request, "stop", completion.stop_reason)
        self._forget(update.request)

    def _score_prompts(self, schedule: Schedule, result: StepResult) -> None:
        """Pass a step's prompt log-probabilities to the requests that asked for them."""
        if result.prompt is None:
            return
        offset = 0
        for row in schedule.rows:
            member = self._members.get(row.request.request_id)
            count = row.num_scheduled_tokens
            if member is not None and not member.group.score_prompt(
                result.prompt, offset, row.start, count
            ):
                self._fail(row.request, _NOT_FINITE)
            offset += count

    def _recover(self, failed: Schedule, error: Exception) -> None:
        """Start over after a step that raised; its requests end if they were in one before."""
        self._in_flight.clear()
        try:
            self._runner.reset_cache()
        except Exception as second:
            self._give_up(f"the device failed ({error}) and the KV cache could not be rebuilt")
            raise self._check_failure() from second
        logger.warning("a step raised and is run again: %s", error)
        self._scheduler.requeue_all(failed)
        for row in failed.rows:
            if row.request.num_failures >= _MAX_FAILURES:
                self._fail(row.request, f"the device step failed twice: {error}")

    def _give_up(self, reason: str) -> None:
        self._failure = StepError(reason)
        for member in list(self._members.values()):
            self._fail(member.completion.request, reason)
        self._collect()

    def _fail(self, request: Request, reason: str) -> None:
        member = self._members.get(request.request_id)
        if member is None:
            return
        member.group.error = member.group.error or reason
        self._end(request, "error")
        self._forget(request)
        self._changed[member.group.request_id] = member.group

    def _end(self, request: Request, reason: Any) -> None:
        self._scheduler.finish(request, reason)
        self._members[request.request_id].completion.finish(reason)

    def _forget(self, request: Request) -> None:
        self._members.pop(request.request_id, None)
        self._synchronous.discard(request.request_id)

    def _collect(self) -> None:
        """Make the outputs of all requests that changed and hand them out."""
        changed, self._changed = self._changed, {}
        now = self._clock()
        for group in changed.values():
            if group.is_finished:
                self._groups.pop(group.request_id, None)
            output = group.output(now)
            if output is None:
                continue
            if group.sink is None:
                self._outputs.append(output)
            else:
                group.sink(output)

    def _check_failure(self) -> StepError:
        return self._failure or StepError("the engine has not failed")

    def _check_alive(self) -> None:
        if self._is_closed:
            raise RuntimeError("the engine is closed")
        if self._failure is not None:
            raise StepError(f"the engine has failed: {self._failure}; make a new LLM")
