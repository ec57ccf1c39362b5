"""Starts replicas of which some compute prompts and others decode, over one host tier."""

import functools
import logging
from collections.abc import Callable
from concurrent.futures import Future

import jax

from jaxinfer.config import EngineConfig
from jaxinfer.serving.prefix_tiers.block_copies import TierCopies
from jaxinfer.serving.prefix_tiers.foreign_blocks import ForeignBlocks
from jaxinfer.serving.prefix_tiers.handovers import Handovers
from jaxinfer.serving.prefix_tiers.pinned_tier import PinnedTier
from jaxinfer.serving.prefix_tiers.tier_counts import TierCounts
from jaxinfer.serving.prefix_tiers.transfers import Transfers
from jaxinfer.serving.programs.kinds.block_rows import block_row
from jaxinfer.serving.programs.programs import Programs
from jaxinfer.serving.runner import kv_cache
from jaxinfer.serving.runner.runner import Runner
from jaxinfer.serving.scheduler.scheduler import Scheduler
from jaxinfer.serving.scheduler.tiers.decode_tiers import DecodeTiers
from jaxinfer.serving.scheduler.tiers.prefill_tiers import PrefillTiers
from jaxinfer.serving.scheduler.tiers.shared_index import SharedIndex
from jaxinfer.serving.scheduler.tiers.tiered_index import TieredIndex
from jaxinfer.serving.startup.own_tiers import MakeTiers
from jaxinfer.serving.startup.tiers import (
    OpenFiles,
    block_bytes,
    check_size,
    leaving_blocks,
    pack,
    read_rows,
    take_pinned,
    transfers_of,
    unpacker,
)

logger = logging.getLogger("jaxinfer")


class ApartTiers:
    """The tier that a group's replicas share, made by the first that starts; the last are prefill.

    Attributes:
        handovers: of the group; there once a replica has started.
    """

    handovers: Handovers

    def __init__(self) -> None:
        self._tier: PinnedTier | None = None

    def role(self, *, prefills: bool) -> "Role":
        """What a replica is to be, for its `StartSettings`."""
        return Role(self, prefills=prefills)

    def open(
        self, row: jax.ShapeDtypeStruct, config: EngineConfig, platform: str, open_files: OpenFiles
    ) -> PinnedTier | None:
        """The shared tier, for the replica that makes it; others get None, and find it `tier`.

        Raises:
            CapacityError: see `check_size`.
        """
        if self._tier is not None:
            return None
        count = config.data_parallel_size
        num_blocks = check_size(row, config, platform) * count
        files = open_files(block_bytes(row))
        self._tier = PinnedTier(num_blocks, count, files, pack=pack, unpack=unpacker(row))
        self.handovers = Handovers(self._tier, config.block_size)
        return self._tier

    @property
    def tier(self) -> PinnedTier:
        """The shared tier of replicas that have begun to start."""
        assert self._tier is not None
        return self._tier


class Role:
    """The tiers of a replica that computes prompts for others, or that decodes what they have."""

    def __init__(self, apart: ApartTiers, *, prefills: bool) -> None:
        self._apart, self._prefills = apart, prefills

    def start(
        self, programs: Programs, config: EngineConfig, platform: str, open_files: OpenFiles
    ) -> Transfers:
        """Start the threads that copy to the shared tier, and back.

        Raises:
            CapacityError: see `check_size`.
        """
        row = block_row(programs)
        if platform == "gpu":
            taken = check_size(row, config, platform) + leaving_blocks(config, platform)
            take_pinned(row, taken)
        is_first = self._apart.open(row, config, platform, open_files) is not None
        transfers = transfers_of(self._apart.tier, row, config, platform)
        transfers.to_devices = ForeignBlocks()
        if not is_first:  # the tier's own counts are the first replica's
            transfers.snapshot = lambda: transfers.counts.plus(TierCounts(capacity_blocks=0))
            transfers.counts.capacity_blocks = 0
        return transfers

    def sides(self, runner: Runner, block_size: int) -> tuple[TieredIndex | None, MakeTiers | None]:
        """A `SharedIndex`, and what makes the scheduler's side of this role."""
        transfers = runner.transfers
        assert transfers is not None
        made = functools.partial(
            PrefillTiers if self._prefills else DecodeTiers,
            transfers=transfers,
            handovers=self._apart.handovers,
            launch_copies=copy_launcher(runner, transfers),
            read_rows=functools.partial(read_rows, runner),
        )
        return SharedIndex(block_size, notes_filled=self._prefills), made

    def attach(self, scheduler: Scheduler) -> None:
        """Have a prefill replica store what each launched step fills."""
        if isinstance(tiers := scheduler.tiers, PrefillTiers):
            scheduler.settle = tiers.around_settle(scheduler.settle)


def copy_launcher(
    runner: Runner, transfers: Transfers
) -> Callable[[TierCopies, Callable[[], None]], None]:
    """A `LaunchCopies` of a runner."""
    mesh = runner.programs.context.mesh
    in_turn = mesh.devices.flat[0].platform == "cpu" and mesh.devices.size > 1
    launcher, rows = runner.launcher, runner.launcher.block_rows

    def copy(copies: TierCopies) -> None:
        kv = launcher.resident.kv
        try:
            rows.copy_out(kv, copies, transfers)
            kv = rows.copy_back(kv, copies, transfers)
            launcher.resident = launcher.resident._replace(kv=kv)
        except Exception:
            if copies.back:  # nobody may read what was not written
                kv_cache.free(launcher.resident.kv)
            raise

    def launch(copies: TierCopies, failed: Callable[[], None]) -> None:
        if launcher.resident.kv is None:
            runner.reset_cache()
        run = runner.launches.run if in_turn else runner.launches.submit
        run(copy, copies).add_done_callback(functools.partial(_note_failure, failed))

    return launch


def _note_failure(failed: Callable[[], None], copies: Future[None]) -> None:
    if (error := copies.exception()) is not None:
        logger.warning("KV blocks were not copied: %s", error)
        failed()
