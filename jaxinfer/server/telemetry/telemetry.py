"""Metrics of a server for Prometheus: one object in each front end."""

import itertools
import re
import time
import types
from collections.abc import AsyncGenerator, Callable, Iterable
from pathlib import Path
from typing import Any

from prometheus_client import generate_latest

from jaxinfer.outputs import RequestOutput
from jaxinfer.server.telemetry import exposition
from jaxinfer.server.telemetry import request_series as series
from jaxinfer.server.telemetry.exposition import ENGINE_PREFIX
from jaxinfer.server.telemetry.number_table import NumberTable
from jaxinfer.server.telemetry.request_watch import RequestWatch, watched
from jaxinfer.server.telemetry.utilization import StepFloors, Utilization, utilization
from jaxinfer.serving.engine.metrics import Counter, Metric


class Telemetry:
    """Counts one front end's requests; shows them with other front ends' and the engine's.

    Any front end may be scraped: with a `directory` in common each shows the sums of all. Tokens
    and ends of requests count as delivered to clients; an engine may have drawn more.

    Args:
        model_name: the label `model_name` of every series.
        directory: one for this run of the server, empty at its start; None for a single front end.
        floors: least times of steps; None, if the devices' speeds are unknown, leaves out
            utilization.

    Raises:
        ValueError: Prometheus does not take the prefix.
        OSError: the directory can't be written.
    """

    def __init__(
        self,
        model_name: str,
        *,
        prefix: str = ENGINE_PREFIX,
        directory: Path | None = None,
        floors: StepFloors | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if prefix and not re.fullmatch(r"[a-zA-Z_:][a-zA-Z0-9_:]*", prefix):
            raise ValueError(
                f"metrics prefix {prefix!r}: take letters, digits, '_' and ':', no digit first"
            )
        self._labels = (("model_name", model_name),)
        self._prefix = prefix
        self._floors = floors
        self._clock = clock
        self._table = NumberTable(series.SIZE, series.LAYOUT, directory)
        self._before = Utilization()

    def request(self, *, delta: bool) -> RequestWatch:
        """A request that comes now; pass it each output by `RequestWatch.observe`.

        Args:
            delta: outputs hold only what is new (`RequestOutputKind.DELTA`).
        """
        return RequestWatch(self._table.values, self._clock(), delta=delta)

    def watch(
        self, outputs: AsyncGenerator[RequestOutput], *, delta: bool
    ) -> AsyncGenerator[RequestOutput]:
        """Yield the outputs and count them; if left early, the request counts as aborted."""
        return watched(outputs, self.request(delta=delta), self._clock)

    def render(self, engine_metrics: Iterable[Metric]) -> bytes:
        """All series in Prometheus's text format."""
        metrics = list(engine_metrics)
        shown = exposition.families(
            itertools.chain(
                exposition.engine_metrics(metrics),
                exposition.request_metrics(self._table.totals()),
                self._utilization(metrics),
            ),
            self._prefix,
            self._labels,
        )
        registry: Any = types.SimpleNamespace(collect=lambda: shown)  # all that is asked of one
        return generate_latest(registry)

    def _utilization(self, metrics: Iterable[Metric]) -> Iterable[tuple[str, Metric]]:
        if self._floors is None:
            return ()
        counters = {
            (m.name.removeprefix(ENGINE_PREFIX), m.labels.get("kind", "")): m.value
            for m in metrics
            if isinstance(m, Counter)
        }
        total = utilization(self._floors, counters)
        before, self._before = self._before, total
        return exposition.utilization_metrics(total, total.since(before))
