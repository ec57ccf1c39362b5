"""Reads what an engine's steps have counted of experts on the devices."""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxinfer.expert_statistics import ExpertStatistics
from jaxinfer.kernels.attention.kv_cache_spec import Tally
from jaxinfer.model.config import ModelConfig
from jaxinfer.serving.engine.steppable import Steppable
from jaxinfer.serving.replicas.group import ReplicaGroup
from jaxinfer.serving.replicas.started_replica import StartedReplica
from jaxinfer.serving.runner.runner import Runner


class ExpertUse:
    """How all replicas' experts were used; for the engine's thread.

    Args:
        engine: steps the replicas.
        replicas: all of them.
        model: the model's config; None in an engine that does not count its experts' tokens.
    """

    def __init__(
        self, engine: Steppable, replicas: Sequence[StartedReplica], model: ModelConfig | None
    ) -> None:
        self._engine = engine
        self._counters: list[RunnerExperts] = []
        if model is not None and model.experts is not None:
            layers, size = model.experts.layers(model.num_hidden_layers), model.experts.num_experts
            self._counters = [RunnerExperts(each.runner, layers, size) for each in replicas]
        self._before: ExpertStatistics | None = None

    def total(self) -> ExpertStatistics | None:
        """All that was counted since the start; None where nothing is."""
        actions = [counter.read for counter in self._counters]
        if isinstance(self._engine, ReplicaGroup):
            found = self._engine.call_each(actions) if actions else []
        else:
            found = [read() for read in actions]
        return functools.reduce(ExpertStatistics.plus, found) if found else None

    def read(self, *, reset: bool) -> ExpertStatistics:
        """What was counted since the last reset; `reset` is one.

        Raises:
            ValueError: nothing is counted.
        """
        total = self.total()
        if total is None:
            raise ValueError(
                "this engine does not count the tokens of experts; make it with "
                "expert_statistics=True"
            )
        found = total if self._before is None else total.since(self._before)
        if reset:
            self._before = total
        return found


class RunnerExperts:
    """What one runner has counted, over the lives of its KV caches.

    What a step that failed on a device had counted since the last reading is lost with its cache.

    Args:
        runner: of an engine with `CountedExperts`.
        layers: indices of the layers with experts.
        num_experts: X.
    """

    def __init__(self, runner: Runner, layers: tuple[int, ...], num_experts: int) -> None:
        self._runner, self._layers = runner, layers
        self._of_freed = np.zeros((len(layers), num_experts + 2), np.int64)
        self._of_present = np.zeros_like(self._of_freed)
        runner.before_free = self._before_free

    def read(self) -> ExpertStatistics:
        """All counts so far, steps in flight included; in the thread that launches steps."""
        self._runner.launches.wait()
        self._see(self._runner.resident.kv)
        total = self._of_freed + self._of_present
        return ExpertStatistics(self._layers, total[:, :-2], int(total[0, -1]), total[:, -2])

    def _before_free(self, kv: Sequence[Any] | None) -> None:
        self._see(kv)
        self._of_freed += self._of_present
        self._of_present = np.zeros_like(self._of_freed)

    def _see(self, kv: Sequence[Any] | None) -> None:
        for tally in kv or ():
            if isinstance(tally, Tally):
                try:
                    self._of_present = counts_on_host(tally)
                except RuntimeError:  # a step that failed has taken it along
                    return


def counts_on_host(tally: Tally) -> np.ndarray:
    """A tally of `CountedExperts` as int64 ``[L, X + 2]``; waits for the step that makes it.

    Raises:
        RuntimeError: its step failed, or a step that it was donated to.
    """
    low, high = np.asarray(tally.counts.addressable_data(0)).astype(np.int64)
    return (high << 32) + low
