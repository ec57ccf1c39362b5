"""Counts one request's outputs on their way to its client."""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from jaxinfer.outputs import FinishReason, RequestMetrics, RequestOutput
from jaxinfer.server.telemetry import request_series as series


class RequestWatch:
    """One request, from its first output to its last; clients' names for requests are not unique.

    Args:
        values: numbers of a table of `request_series`.
        start: when the request came, in seconds on the clock of `observe`.
        delta: outputs hold only what is new (`RequestOutputKind.DELTA`).
    """

    def __init__(self, values: "memoryview[float]", start: float, *, delta: bool) -> None:
        self._values = values
        self._start = start
        self._delta = delta
        self._last = start
        self._num_prompt: int | None = None
        self._num_tokens = 0
        self._num_completions = 1
        self._ended: set[int] = set()
        self._is_finished = False

    def observe(self, output: RequestOutput, now: float) -> None:
        """Count the new tokens of an output."""
        if self._is_finished:
            return
        values, outputs = self._values, output.outputs
        seen, self._num_completions = 0, len(outputs)
        for completion in outputs:
            seen += len(completion.token_ids)
            if completion.finish_reason is not None and completion.index not in self._ended:
                self._ended.add(completion.index)
                values[series.SUCCESS[completion.finish_reason]] += 1
        new = seen if self._delta else seen - self._num_tokens
        if new:
            self._count_tokens(output, new, now)
        if output.finished:
            if self._num_prompt is None and outputs[0].finish_reason in ("stop", "length"):
                self._count_prompt(output)  # scored, and nothing generated
            self._finish(output.metrics, now)

    def end(self, reason: FinishReason) -> None:
        """Record that no more outputs will come; does nothing after the last one."""
        if not self._is_finished:
            self._is_finished = True
            self._values[series.SUCCESS[reason]] += self._num_completions - len(self._ended)

    def _count_prompt(self, output: RequestOutput) -> None:
        self._num_prompt = len(output.prompt_token_ids)
        self._values[series.PROMPT_TOKENS] += self._num_prompt
        self._values[series.CACHED_TOKENS] += output.num_cached_tokens

    def _count_tokens(self, output: RequestOutput, new: int, now: float) -> None:
        values = self._values
        if not self._num_tokens:
            self._count_prompt(output)
            first = output.metrics and output.metrics.ttft
            series.TTFT.observe(values, now - self._start if first is None else first)
        else:
            series.INTER_TOKEN.observe(values, now - self._last)
        self._last = now
        self._num_tokens += new
        values[series.GENERATION_TOKENS] += new

    def _finish(self, metrics: RequestMetrics | None, now: float) -> None:
        self._is_finished = True
        values = self._values
        series.E2E.observe(values, now - self._start)
        if self._num_prompt is None:
            return
        series.NUM_PROMPT.observe(values, self._num_prompt)
        series.NUM_GENERATED.observe(values, self._num_tokens)
        if metrics is None:
            return
        for histogram, seconds in (
            (series.PER_TOKEN, metrics.tpot),
            (series.QUEUE, metrics.queue_time),
            (series.PREFILL, metrics.prefill_time),
            (series.DECODE, metrics.decode_time),
            (series.INFERENCE, metrics.inference_time),
        ):
            if seconds is not None:
                histogram.observe(values, seconds)


async def watched(
    outputs: AsyncGenerator[RequestOutput], watch: RequestWatch, clock: Callable[[], float]
) -> AsyncGenerator[RequestOutput]:
    """Yield the outputs and count them; if left early, the request counts as aborted."""
    try:
        async with aclosing(outputs):
            async for output in outputs:
                watch.observe(output, clock())
                yield output
    except Exception:
        watch.end("error")
        raise
    finally:
        watch.end("abort")
