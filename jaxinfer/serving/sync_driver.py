"""Runs an engine in the caller's thread until the caller's requests are done."""

import collections
import threading
from collections.abc import Callable, Iterable, Iterator

from tqdm import tqdm

from jaxinfer.outputs import RequestOutput
from jaxinfer.sampling_params import SamplingParams
from jaxinfer.serving.inputs import Prompt
from jaxinfer.serving.interrupt import InterruptBetweenSteps
from jaxinfer.serving.request_engine import RequestEngine


class SyncDriver:
    """Steps an engine for whoever waits; several threads may wait at once.

    Whoever steps, steps for all: each request's outputs go to the one who asked for it. Ctrl-C
    takes effect between steps and aborts the requests of the call it interrupts.

    Args:
        engine: the engine.
        lock: held around every use of it.
    """

    def __init__(self, engine: RequestEngine, lock: threading.RLock):
        self._engine = engine
        self._lock = lock

    def run(
        self,
        ids: list[str],
        prompts: list[Prompt],
        params: list[SamplingParams],
        *,
        show_progress: bool,
        prefill_only: bool = False,
    ) -> list[RequestOutput]:
        """Run requests to their end.

        Args:
            ids: a new name for each request.
            prompts: one for each.
            params: one for each.
            show_progress: a progress bar on stderr.
            prefill_only: sample nothing.

        Returns:
            Their outputs, in the order of `ids`.
        """
        done: dict[str, RequestOutput] = {}
        num_tokens = 0
        bar = tqdm(total=len(ids), desc="Processed prompts", disable=not show_progress)

        def sink(output: RequestOutput) -> None:
            nonlocal num_tokens
            done[output.request_id] = output
            num_tokens += sum(len(completion.token_ids) for completion in output.outputs)
            elapsed = bar.format_dict["elapsed"] or 1e-9
            bar.set_postfix_str(f"{num_tokens / elapsed:.0f} output tok/s", refresh=False)
            bar.update()

        with bar, InterruptBetweenSteps() as interrupt:
            try:
                with self._lock:
                    for name, prompt, entry in zip(ids, prompts, params, strict=True):
                        self._engine.add(
                            name, prompt, entry, kind="final", sink=sink, prefill_only=prefill_only
                        )
                while len(done) < len(ids):
                    self._step_unless(lambda: len(done) == len(ids))
                    interrupt.check()
            except BaseException:
                self.abort(ids)
                raise
        return [done[name] for name in ids]

    def stream(self, name: str, prompt: Prompt, params: SamplingParams) -> Iterator[RequestOutput]:
        """Run one request and yield what is new after each step that brought something."""
        outputs: collections.deque[RequestOutput] = collections.deque()
        finished = False
        try:
            with self._lock:
                self._engine.add(name, prompt, params, kind="delta", sink=outputs.append)
            while not finished:
                while not outputs:
                    with InterruptBetweenSteps():
                        self._step_unless(lambda: bool(outputs))
                output = outputs.popleft()
                finished = output.finished
                yield output
        finally:
            if not finished:
                self.abort([name])

    def step(self) -> list[RequestOutput]:
        """One step; the outputs of requests that nobody else listens to."""
        with InterruptBetweenSteps():
            self._step_unless(lambda: False)
        with self._lock:
            return self._engine.take_outputs()

    def abort(self, ids: Iterable[str]) -> None:
        """End requests; those that have ended are left alone."""
        with self._lock:
            for name in ids:
                self._engine.abort(name)

    def _step_unless(self, satisfied: Callable[[], bool]) -> None:
        """One step, unless another thread's step has brought what is wanted meanwhile."""
        with self._lock:
            if not satisfied():
                self._engine.step()
