"""The tiers of an engine that shares them with no other."""

import functools
from collections.abc import Callable
from typing import Protocol

from jaxinfer.config import EngineConfig
from jaxinfer.serving.prefix_tiers.transfers import Transfers
from jaxinfer.serving.programs.programs import Programs
from jaxinfer.serving.runner.runner import Runner
from jaxinfer.serving.scheduler.request_queues import RequestQueues
from jaxinfer.serving.scheduler.scheduler import Scheduler
from jaxinfer.serving.scheduler.tiers.no_tiers import NoTiers
from jaxinfer.serving.scheduler.tiers.prefix_tiers import PrefixTiers
from jaxinfer.serving.scheduler.tiers.tiered_index import TieredIndex
from jaxinfer.serving.startup.tiers import OpenFiles, read_rows, start_transfers

MakeTiers = Callable[[RequestQueues], NoTiers]


class EngineTiers(Protocol):
    """What an engine's start asks of its tiers."""

    def start(
        self, programs: Programs, config: EngineConfig, platform: str, open_files: OpenFiles
    ) -> Transfers | None:
        """`start_transfers`."""
        ...

    def sides(self, runner: Runner, block_size: int) -> tuple[TieredIndex | None, MakeTiers | None]:
        """The prefix index and what makes the scheduler's side; None for the plain ones."""
        ...

    def attach(self, scheduler: Scheduler) -> None:
        """Change the scheduler as its side wants it."""
        ...


class OwnTiers:
    """Tiers of one engine, if its arguments ask for some."""

    def start(
        self, programs: Programs, config: EngineConfig, platform: str, open_files: OpenFiles
    ) -> Transfers | None:
        """Start the threads that copy; None without tiers."""
        return start_transfers(programs, config, platform, open_files)

    def sides(self, runner: Runner, block_size: int) -> tuple[TieredIndex | None, MakeTiers | None]:
        """A `TieredIndex`, and what makes `PrefixTiers`."""
        if (transfers := runner.transfers) is None:
            return None, None
        rows = functools.partial(read_rows, runner)
        tiers = functools.partial(
            PrefixTiers, transfers=transfers, policy=transfers.policy, read_rows=rows
        )
        return TieredIndex(block_size), tiers

    def attach(self, scheduler: Scheduler) -> None:
        """Change nothing."""


OWN_TIERS = OwnTiers()
