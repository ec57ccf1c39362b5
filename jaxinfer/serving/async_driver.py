"""Runs an engine in a thread of its own, for any number of tasks of event loops."""

import asyncio
import collections
import contextlib
import threading
from collections.abc import AsyncGenerator, Callable

from jaxinfer.outputs import RequestOutput
from jaxinfer.sampling_params import SamplingParams
from jaxinfer.serving.inputs import Prompt
from jaxinfer.serving.request_engine import RequestEngine

_Item = RequestOutput | BaseException
_Put = Callable[[_Item], None]


class AsyncDriver:
    """Steps an engine while it has anything to do; the thread starts with the first stream.

    Args:
        engine: the engine.
        lock: held around every use of it.
    """

    def __init__(self, engine: RequestEngine, lock: threading.RLock):
        self._engine = engine
        self._lock = lock
        self._inbox: collections.deque[Callable[[], None]] = collections.deque()
        self._wake = threading.Event()
        self._streams: dict[str, _Put] = {}
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._stopping = False

    async def stream(
        self, request_id: str, prompt: Prompt, params: SamplingParams
    ) -> AsyncGenerator[RequestOutput]:
        """Run a request; yields what is new after each step that brought something.

        Leaving the iteration early, or cancelling its task, aborts the request.

        Raises:
            ValueError: the engine refuses the request.
            StepError: the engine failed for good.
            RuntimeError: the LLM was closed.
        """
        loop = asyncio.get_running_loop()
        items: asyncio.Queue[_Item] = asyncio.Queue()

        def put(item: _Item) -> None:
            # The loop may have ended without its tasks being cancelled; nobody listens then.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(items.put_nowait, item)

        self._post(lambda: self._add(request_id, prompt, params, put))
        finished = False
        try:
            while not finished:
                item = await items.get()
                if isinstance(item, BaseException):
                    finished = True
                    raise item
                finished = item.finished
                yield item
        finally:
            if not finished:
                self._post(lambda: self._abort(request_id))

    def stop(self) -> None:
        """End the thread after the step it is in; open streams raise. Safe to call again."""
        self._stopping = True
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._fail_streams(RuntimeError("this LLM was closed"))

    def _post(self, action: Callable[[], None]) -> None:
        """Have the thread do something before its next step."""
        self._inbox.append(action)
        if self._stopping:
            with self._lock:
                self._do_posted()
            return
        with self._starting:
            if self._thread is None:
                # A daemon: a program that never closes its LLM must still be able to end.
                self._thread = threading.Thread(target=self._run, name="jaxinfer", daemon=True)
                self._thread.start()
        self._wake.set()

    def _run(self) -> None:
        while not self._stopping:
            self._wake.wait()
            self._wake.clear()
            try:
                while self._advance():
                    pass
            except Exception as error:  # a dead engine: everyone who waits must hear of it
                self._fail_streams(error)

    def _advance(self) -> bool:
        """Do what was posted and one step; whether there may be more to do."""
        with self._lock:
            self._do_posted()
            if self._stopping or not self._streams:
                return False
            self._engine.step()
            return True

    def _do_posted(self) -> None:
        while self._inbox:
            self._inbox.popleft()()

    def _add(self, request_id: str, prompt: Prompt, params: SamplingParams, put: _Put) -> None:
        if self._stopping:
            put(RuntimeError("this LLM was closed"))
            return

        def sink(output: RequestOutput) -> None:
            if output.finished:
                self._streams.pop(request_id, None)
            put(output)

        try:
            self._engine.add(request_id, prompt, params, kind="delta", sink=sink)
        except Exception as error:  # it belongs to the task that asked
            put(error)
        else:
            self._streams[request_id] = put

    def _abort(self, request_id: str) -> None:
        if self._streams.pop(request_id, None) is not None:
            self._engine.abort(request_id)

    def _fail_streams(self, error: BaseException) -> None:
        with self._lock:
            streams, self._streams = self._streams, {}
        for put in streams.values():
            put(error)
