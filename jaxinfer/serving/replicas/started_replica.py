"""A started engine with its runner and scheduler, which several parts of a start use."""

from dataclasses import dataclass

from jaxinfer.serving.engine.engine import Engine
from jaxinfer.serving.runner.runner import Runner
from jaxinfer.serving.scheduler.scheduler import Scheduler


@dataclass(frozen=True)
class StartedReplica:
    """An engine and its two sides."""

    engine: Engine
    runner: Runner
    scheduler: Scheduler
