"""Coordinates the processes of one engine: agreement, calls from process 0, and a common end.

They communicate through JAX's coordination service, a key-value store on process 0. Values are
JSON: nothing that is read is executed.
"""

import atexit
import contextlib
import itertools
import json
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import jax
from jax._src import distributed

from jaxinfer.errors import DistributedError, StepError
from jaxinfer.serving.processes.start import ENDED_KEY, START_TIMEOUT_S, end_without_the_others
from jaxinfer.serving.threads.worker_thread import WorkerThread

Message = Mapping[str, Any]
"""A JSON object."""

_POLL_MS = 200
_PATIENCE_S = 10.0  # with another process, before that is said
# Time for a process to report another one's failure as an exception before it just ends.
_GRACE_S = 10.0
_CALLS_KEPT = 256

_number = itertools.count()
"""Numbers the engines: every process makes the same engines in the same order."""


def meet(timeout: float = START_TIMEOUT_S) -> "ProcessGroup | None":
    """The processes of the next engine, once all are there; None if JAX knows of no other.

    Raises:
        DistributedError: another process has ended or did not come in time; names it.
    """
    state = distributed.global_state
    if not jax.distributed.is_initialized() or state.num_processes == 1:
        return None
    prefix = f"jaxinfer/engine {next(_number)}/"
    group = ProcessGroup(state.process_id, state.num_processes, state.client, prefix)
    try:
        group.agree("here", True, timeout=timeout)
    except BaseException:
        group.close()
        raise
    return group


class ProcessGroup:
    """The processes of one engine; process 0 leads and takes the requests.

    A process that reports its failure raises an exception in the others, where they wait for each
    other, and ends any process that does not notice within seconds, because a collective that waits
    for it would never end. Processes that are killed are left to JAX, which ends the others.
    """

    def __init__(self, process_id: int, num_processes: int, client: Any, prefix: str) -> None:
        self.process_id = process_id
        self.num_processes = num_processes
        self._client = client
        self._prefix = prefix
        self._num_agreed = self._num_calls = self._num_forgotten = 0
        self._failure: str | None = None
        # Set when the processes end, or this one has reported or received a failure.
        self._is_over = threading.Event()
        self._sender = WorkerThread("jaxinfer-calls")  # a step need not wait for it
        self._watcher = threading.Thread(target=self._watch, name="jaxinfer-watch", daemon=True)
        self._watcher.start()
        atexit.register(self.close)  # before JAX's own hook, which waits for all processes

    @property
    def leads(self) -> bool:
        """True if this is process 0."""
        return self.process_id == 0

    @property
    def is_ending(self) -> bool:
        """True if the processes are ending, or one has failed."""
        return self._is_over.is_set() or self._failure is not None

    def agree(self, topic: str, value: Any, *, timeout: float = float("inf")) -> list[Any]:
        """Every process's plain JSON value, in order of process ids; all processes call it.

        Raises:
            DistributedError: another process has failed; says which and why.
        """
        self._num_agreed += 1
        key = f"{topic} {self._num_agreed}/"
        self.put(f"{key}{self.process_id}", value)
        everyone = range(self.num_processes)
        return [self.get(f"{key}{i}", i, timeout=timeout) for i in everyone]

    def require_same(
        self, description: Mapping[str, Any], fix: str = "start all of them alike"
    ) -> None:
        """Raise on every process, naming the first difference, unless all descriptions are equal.

        Raises:
            DistributedError: names what differs, and the processes.
        """
        everyone = self.agree("description", description)
        for name in dict.fromkeys(name for each in everyone for name in each):
            for i, other in enumerate(everyone):
                first, own = everyone[0].get(name), other.get(name)
                if own != first:
                    raise DistributedError(
                        f"processes differ in {name}: process 0 has {first!r}, process {i} has "
                        f"{own!r}; {fix}"
                    )

    def put(self, key: str, value: Any) -> None:
        """Store a value for the others, replacing an earlier one."""
        self._client.key_value_set(self._prefix + key, json.dumps(value), allow_overwrite=True)

    def get(
        self, key: str, owner: int, *, timeout: float = float("inf"), notice: str | None = None
    ) -> Any:
        """Wait for a value that another process stores; if that takes long, print `notice`.

        Raises:
            DistributedError: a process has failed or ended, or did not come in time; says which.
        """
        since = time.monotonic()
        while (text := self._poll(self._prefix + key)) is None:
            self.check()
            waited = time.monotonic() - since
            if self._poll(f"{ENDED_KEY}{owner}", milliseconds=1) is not None:
                raise DistributedError(f"process {owner} has ended")
            if waited > timeout:
                raise DistributedError(
                    f"process {owner} did not make its engine in time; every process must make the "
                    "same engines in the same order"
                )
            if notice is not None and waited > _PATIENCE_S:
                print(notice, file=sys.stderr, flush=True)
                notice = None
        return json.loads(text)

    def call(self, message: Message) -> None:
        """Send a call to all other processes, which carry calls out in order.

        Raises:
            DistributedError: another process has failed; says which and why.
        """
        self.check()
        self._sender.submit(self.put, f"call {self._num_calls}", message)
        self._num_calls += 1
        if self._num_calls % _CALLS_KEPT == 0:
            self._sender.submit(self._forget_calls)

    def next_call(self) -> dict[str, Any]:
        """Wait for process 0's next call; its kind is "stop" once process 0 has ended.

        Raises:
            DistributedError: another process has failed; says which and why.
        """
        message = self.get(f"call {self._num_calls}", 0)
        self._num_calls += 1
        if self._num_calls % _CALLS_KEPT == 0:
            self.put(f"taken/{self.process_id}", self._num_calls)
        if message["kind"] == "stop":
            self._is_over.set()
        return message

    def check(self) -> None:
        """Raise if another process, or this one, has reported a failure.

        Raises:
            DistributedError: says which process failed and why.
        """
        if self._failure is not None:
            self._is_over.set()
            raise DistributedError(self._failure)

    def fail(self, reason: str) -> None:
        """Report to the others that this process can't go on; they end."""
        if not self.is_ending:
            self._failure = f"process {self.process_id}: {reason}"
            with contextlib.suppress(jax.errors.JaxRuntimeError):  # another one was faster
                self._client.key_value_set(f"{self._prefix}failed", self._failure)
        self._is_over.set()

    @contextlib.contextmanager
    def reporting_failures(self) -> Iterator[None]:
        """Report any exception inside to the other processes."""
        try:
            yield
        except KeyboardInterrupt:
            self.fail("interrupted (Ctrl-C)")
            raise
        except BaseException as error:
            if isinstance(error, StepError):  # such as when another process was killed
                end_without_the_others()
            self.fail(" ".join(str(error).split()) or type(error).__name__)
            raise

    def close(self) -> None:
        """End in good order: the others get the call to stop. Safe to call again."""
        atexit.unregister(self.close)
        if not self.is_ending:
            if self.leads:
                self.call({"kind": "stop"})
            else:
                self.fail("it closed its engine while process 0 still runs")
        self._is_over.set()
        self._sender.close()
        self._watcher.join()  # Python's end would abort in the midst of a call to JAX

    def _poll(self, key: str, milliseconds: int = _POLL_MS) -> str | None:
        try:
            return self._client.blocking_key_value_get(key, milliseconds)
        except jax.errors.JaxRuntimeError as error:
            if "DEADLINE_EXCEEDED" in str(error):
                return None
            raise DistributedError(str(error).splitlines()[0]) from None

    def _watch(self) -> None:
        """End this process when another one has failed, unless it notices that in time.

        Its main thread may be waiting in a collective forever.
        """
        text = None
        with contextlib.suppress(DistributedError):  # the connection is gone
            while text is None and not self._is_over.is_set():
                text = self._poll(f"{self._prefix}failed")
        if text is None:
            return
        self._failure = self._failure or text
        if not self._is_over.wait(_GRACE_S):
            line = f"jaxinfer: {text}; process {self.process_id} ends too"
            print(line, file=sys.stderr, flush=True)
            os._exit(1)

    def _forget_calls(self) -> None:
        """Delete the calls that all others have taken."""
        taken = [self._poll(f"{self._prefix}taken/{i}", 1) for i in range(1, self.num_processes)]
        least = min(int(each or 0) for each in taken)
        for number in range(self._num_forgotten, least):
            self._client.key_value_delete(f"{self._prefix}call {number}")
        self._num_forgotten = max(self._num_forgotten, least)
