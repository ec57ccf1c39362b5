"""Steps an engine in a thread of its own, the only one that ever touches it."""

import asyncio
import atexit
import concurrent.futures
import contextlib
import dataclasses
import functools
import logging
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, get_args

from jaxinfer.errors import JaxinferError
from jaxinfer.outputs import RequestOutput
from jaxinfer.serving.engine.owner_thread import OwnerThread
from jaxinfer.serving.engine.request_engine import RequestEngine
from jaxinfer.serving.engine.sleep import PauseMode, SleepState, SleepTag
from jaxinfer.serving.guided.compiler import GrammarCompiler
from jaxinfer.serving.guided.grammar_queue import GrammarQueue
from jaxinfer.serving.requests.new_request import NewRequest

logger = logging.getLogger("jaxinfer")

InFlightPolicy = Literal["keep", "wait", "abort"]
"""What becomes of running requests when the weights change: they go on with the new ones, end
before, or are ended."""

_live: "weakref.WeakSet[EngineDriver]" = weakref.WeakSet()  # a thread keeps its driver alive


class EngineDriver:
    """Takes requests from any thread and steps the engine while one of them is unfinished.

    Every call becomes a message to the engine's thread, and messages are done in order between
    steps: so nothing waits for a lock, and `cancel` and `close_soon` may come from finalizers,
    signal handlers and event loops.

    Args:
        engine: one engine, or a group of replicas.
        release: called in that thread when the engine is closed.
        grammars: compiles those of requests before the engine gets them; None leaves that to it.
    """

    def __init__(
        self,
        engine: RequestEngine,
        release: Callable[[], None] | None = None,
        grammars: GrammarCompiler | None = None,
    ) -> None:
        self._engine = engine
        self._release = release
        self._grammars = GrammarQueue(grammars)
        # Touched by the engine's thread alone: the requests that it steps for, by key, and those
        # that wait for `step`, by the caller's label.
        self._driven: dict[str, NewRequest] = {}
        self._by_hand: dict[str, str] = {}
        self._outputs: list[RequestOutput] = []
        self._sleep = SleepState()
        self._is_stepping = False
        self._is_closed = False
        self._after_round: Callable[[], None] = lambda: None
        self.is_closing = False
        """Whether `close` or `close_soon` was called."""
        self._owner = OwnerThread("jaxinfer-engine", self._advance)
        _live.add(self)

    def after_each_round(self, action: Callable[[], None]) -> None:
        """Have something done in the engine's thread after each step, and after each message.

        For what gathers outputs and passes them on together; it must not raise. Only in the
        engine's thread, by `call` or `call_async`.
        """
        self._after_round = action

    @property
    def owner(self) -> OwnerThread:
        """The engine's thread."""
        return self._owner

    @property
    def num_compiling(self) -> int:
        """Requests that wait for their grammars to be compiled."""
        return len(self._grammars)

    def submit(self, requests: Sequence[NewRequest]) -> None:
        """Enqueue requests, all or none; waits for their grammars to be compiled.

        Raises:
            ValueError: the engine refuses one of them, or a grammar is none.
            StepError: the engine has failed for good.
            RuntimeError: it is closed, or sleeps.
        """
        self._grammars.compile(requests)
        self.call(lambda: self._add_all(requests))

    def submit_soon(self, requests: Sequence[NewRequest]) -> None:
        """Enqueue requests, all or none, without waiting; each gets the error if one is refused."""
        compiled = self._grammars.start(requests)
        if compiled is None:
            self._soon(lambda: self._try_to_add(requests))
            return
        self._soon(lambda: self._grammars.hold(requests))
        compiled.add_done_callback(
            lambda done: self._owner.post(lambda: self._add_compiled(requests, done.exception()))
        )

    def cancel(self, keys: Iterable[str]) -> None:
        """End requests after the step that runs; those that have ended are left alone."""
        self._owner.post(lambda: self._cancel(keys))

    def abort_labels(self, labels: Iterable[str]) -> None:
        """End requests that callers gave these names; each gets a last output, "abort".

        Only in the engine's thread, by `call` or `call_async`.
        """
        labels = set(labels)
        for key in [key for key, request in self._driven.items() if request.label in labels]:
            self._engine.abort(key)
        self._grammars.abort(labels)

    async def call_async(self, action: Callable[[], Any]) -> Any:
        """`call` for a task of an event loop, whose others go on meanwhile.

        Raises:
            RuntimeError: the engine is closed.
        """
        outcome: concurrent.futures.Future[Any] = concurrent.futures.Future()

        def attempt() -> None:
            if not outcome.set_running_or_notify_cancel():
                return
            try:
                self._check_open()
                outcome.set_result(action())
            except BaseException as error:  # raised where it was asked for
                outcome.set_exception(error)

        self._owner.post(attempt)
        return await asyncio.wrap_future(outcome)

    @property
    def failure(self) -> JaxinferError | None:
        """Why the engine takes no request any more, if it has failed for good."""
        return self._engine.failure

    def call(self, action: Callable[[], Any]) -> Any:
        """Do something with the engine between two steps, and wait for its result.

        Raises:
            RuntimeError: the engine is closed.
        """

        def attempt() -> Any:
            self._check_open()
            return action()

        return self._owner.call(attempt)

    def update_params(self, params: Any, in_flight: InFlightPolicy) -> None:
        """Swap the weights; only in the engine's thread, by `call` or `call_async`.

        Args:
            params: as `RequestEngine.update_params` takes them, checked before.
            in_flight: with "wait", what is posted meanwhile waits too, so that requests which come
                later get the new weights.

        Raises:
            Exception: as `RequestEngine.update_params`, or what a step of "wait" raises.
            RuntimeError: the weights sleep, a step runs, or requests can't end because of a pause.
        """
        self._check_between_steps()
        self._sleep.check_takes_params()
        self._settle_requests(in_flight)
        self._engine.update_params(params)
        self._sleep.lacks_weights = False

    @property
    def is_sleeping(self) -> bool:
        """Whether any part of the engine sleeps; any thread may ask."""
        return bool(self._sleep.asleep)

    @property
    def is_paused(self) -> bool:
        """Whether no step runs, be it by `pause` or by `sleep`; any thread may ask."""
        return not self._sleep.may_step

    def pause(self, mode: PauseMode) -> None:
        """Run no step until `resume`; only in the engine's thread, like the three that follow.

        Args:
            mode: checked before; with "wait", what is posted meanwhile waits too.

        Raises:
            RuntimeError: a step runs, or requests can't end because of an earlier pause.
            Exception: what a step of "wait" raises.
        """
        self._check_between_steps()
        self._settle_requests(mode)
        self._sleep.is_paused = True

    def resume(self) -> None:
        """Run steps again, unless a part sleeps."""
        self._sleep.is_paused = False

    def sleep(self, level: int, mode: PauseMode) -> None:
        """Stop scheduling and, from level 1 on, give back the device memory.

        Raises:
            ValueError: level 1 or 2 with several processes; no request has ended.
            RuntimeError: it sleeps already, or as `pause`.
            Exception: as `RequestEngine.sleep`; nothing sleeps.
        """
        self._check_between_steps()
        self._sleep.check_sleeps_not()
        if level > 0 and not self._engine.can_sleep:
            raise ValueError(
                "sleep(level=1 or 2) works within one process: call pause(), sleep(level=0), or "
                "close the LLM of every process and make new ones"
            )
        if level == 1:
            self._sleep.check_takes_requests()
        self._settle_requests(mode)
        if level > 0:
            self._engine.sleep(keep_params=level == 1)
        self._sleep.fall_asleep(level)

    def wake_up(self, tags: Iterable[SleepTag] | None) -> None:
        """Bring back parts that sleep; None for all.

        Raises:
            TypeError, ValueError, RuntimeError: as `SleepState.parts_to_wake`.
            Exception: the device lacks the memory; the part goes on sleeping.
        """
        for tag in self._sleep.parts_to_wake(tags):
            if tag == "weights":
                self._engine.wake_params()
            elif tag == "kv_cache":
                self._engine.wake_cache()
            self._sleep.wake(tag)

    def add_by_hand(self, request: NewRequest) -> None:
        """Enqueue a request that goes on only while others run or `step` is called.

        Raises:
            ValueError: its label is in use by another such request, or as `submit`.
        """
        self._grammars.compile([request])
        self.call(lambda: self._add_by_hand(request))

    def abort_by_hand(self, labels: Iterable[str]) -> None:
        """End requests of `add_by_hand`, after the step that runs; others are ignored."""
        labels = list(labels)

        def abort() -> None:
            for label in labels:
                if (key := self._by_hand.pop(label, None)) is not None:
                    self._engine.abort(key)
                    self._outputs = [o for o in self._outputs if o.request_id != label]

        self._owner.post(abort)

    def step(self) -> list[RequestOutput]:
        """One step; the outputs of requests of `add_by_hand` since the last call."""

        def step() -> list[RequestOutput]:
            try:
                if self._engine.has_unfinished and self._sleep.may_step:
                    self._step()
            finally:
                outputs, self._outputs = self._outputs, []
            return outputs

        return self.call(step)

    @property
    def has_unfinished(self) -> bool:
        """Whether `step` has anything to do or to return."""
        return self.call(lambda: bool(self._engine.has_unfinished or self._outputs))

    def close(self) -> None:
        """Abort everything and close the engine; returns when that is done. Safe to repeat."""
        self.close_soon()
        self._owner.join()

    def close_soon(self) -> None:
        """The same without waiting: for finalizers, which may run in any thread at any point."""
        self.is_closing = True
        self._owner.post(self._close)
        self._owner.end()

    def _advance(self) -> bool:
        """One step, if somebody waits for it; whether there may be more to do."""
        may_step = bool(self._driven) and self._sleep.may_step
        if may_step:
            try:
                self._step()
                if self._driven and not self._engine.has_unfinished:
                    raise RuntimeError("the engine lost a request")
            except BaseException as error:
                self._end_driven(error)
        self._after_round()
        return may_step and bool(self._driven)

    def _step(self) -> None:
        self._is_stepping = True
        try:
            self._engine.step()
        finally:
            self._is_stepping = False

    def _settle_requests(self, mode: PauseMode) -> None:
        """End unfinished requests now ("abort") or by steps ("wait"), or leave them ("keep")."""
        if mode == "abort":
            for key in [*self._driven, *self._by_hand.values()]:
                self._engine.abort(key)
        if mode == "wait" and self._engine.has_unfinished and not self._sleep.may_step:
            raise RuntimeError(
                "requests can't end while the engine is paused or sleeps: resume it first, or give "
                "'keep' or 'abort' in place of 'wait'"
            )
        while mode == "wait" and self._engine.has_unfinished:
            self._step()

    def _check_between_steps(self) -> None:
        if self._is_stepping:
            raise RuntimeError("this was called from within a step; call it from another thread")

    def _end_driven(self, error: BaseException) -> None:
        """Nobody waits for ever, and nothing stays, after what the engine could not contain."""
        if not isinstance(error, JaxinferError):
            logger.error("the engine's step raised", exc_info=error)
        driven, self._driven = self._driven, {}
        for key, request in driven.items():
            with contextlib.suppress(Exception):
                _tell(request, error)
            with contextlib.suppress(Exception):
                self._engine.abort(key)

    def _add_all(self, requests: Sequence[NewRequest]) -> None:
        self._sleep.check_takes_requests()
        try:
            for request in requests:
                deliver = functools.partial(self._deliver, request)
                self._engine.add(dataclasses.replace(request, sink=deliver))
                self._driven[request.key] = request
        except BaseException:
            self._cancel([request.key for request in requests])
            raise

    def _try_to_add(self, requests: Sequence[NewRequest]) -> None:
        try:
            self._check_open()
            self._add_all(requests)
        except Exception as error:
            for request in requests:
                _tell(request, error)

    def _add_compiled(self, requests: Sequence[NewRequest], error: BaseException | None) -> None:
        """Enqueue requests whose grammars are compiled, but for those that were cancelled."""
        waiting, aborted = self._grammars.take(requests)
        if error is None:
            self._try_to_add(waiting)
        else:
            for request in waiting:
                _tell(request, error)
        for key in aborted:
            self._engine.abort(key)

    def _soon(self, action: Callable[[], None]) -> None:
        """Do it now in the engine's thread, or post it from another."""
        if self._owner.is_current:
            action()
        else:
            self._owner.post(action)

    def _deliver(self, request: NewRequest, output: RequestOutput) -> None:
        if output.finished:
            self._driven.pop(request.key, None)
        _tell(request, output)

    def _cancel(self, keys: Iterable[str]) -> None:
        for key in keys:
            # Nobody listens any more, also not to its last output.
            self._grammars.drop(key)
            if self._driven.pop(key, None) is not None:
                self._engine.abort(key)

    def _add_by_hand(self, request: NewRequest) -> None:
        if request.label in self._by_hand:
            raise ValueError(f"request id {request.label!r} is in use by an unfinished request")
        self._sleep.check_takes_requests()
        self._engine.add(dataclasses.replace(request, sink=self._collect))
        self._by_hand[request.label] = request.key

    def _collect(self, output: RequestOutput) -> None:
        if output.finished:
            self._by_hand.pop(output.request_id, None)
        self._outputs.append(output)

    def _close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self._engine.close()
            self._after_round()
        finally:
            if self._release is not None:
                self._release()

    def _check_open(self) -> None:
        if self._is_closed:
            raise RuntimeError("the engine is closed; make a new one")


def check_in_flight(policy: Any) -> None:
    """Raise ValueError unless it is an `InFlightPolicy`."""
    if policy not in get_args(InFlightPolicy):
        raise ValueError(f"in_flight must be 'keep', 'wait' or 'abort', got {policy!r}")


def _tell(request: NewRequest, news: RequestOutput | BaseException) -> None:
    if request.sink is not None:
        request.sink(news)


def wait_for_closing() -> None:
    """Wait until engines that nobody refers to any more have given back their device memory."""
    for driver in list(_live):
        if driver.is_closing:
            driver.owner.join()


def _close_all() -> None:
    """At the end of Python: a thread that is killed inside a step may take the process with it."""
    for driver in list(_live):
        driver.close()


atexit.register(_close_all)
