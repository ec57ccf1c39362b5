"""Opens the file tier of an engine, which its replicas share."""

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxinfer.config import EngineConfig
from jaxinfer.serving.compile.cache.private_directory import obstacle
from jaxinfer.serving.prefix_tiers.file_tier import FileTier
from jaxinfer.serving.prefix_tiers.file_writer import FileWriter
from jaxinfer.serving.prefix_tiers.tier_directory import make_directory
from jaxinfer.serving.programs.programs import Programs
from jaxinfer.serving.startup.fingerprint import fingerprint


class SharedFiles:
    """The file tier of an engine's replicas, opened by the first.

    Args:
        config: the engine's arguments; its directory is made and checked now, before any weights
            are read.

    Raises:
        ValueError: the directory can't be used.
    """

    def __init__(self, config: EngineConfig) -> None:
        self._directory = None
        self._capacity_bytes = int(config.kv_offloading_disk_size * 2**30)
        self._files: FileTier | None = None
        self._lock = threading.Lock()
        if config.kv_offloading_directory is not None:
            self._directory = make_directory(config.kv_offloading_directory)
            _check_private(self._directory)

    def open(
        self, programs: Programs, params: Mapping[str, Any], draft_head: object, block_bytes: int
    ) -> FileWriter | None:
        """What a replica's host tier hands its blocks to; None without a directory.

        Args:
            programs: the replica's.
            params: as they are placed.
            draft_head: the configuration of the head that drafts; None without one.
            block_bytes: of a block in host memory.

        Raises:
            ValueError: the directory can't be used.
            CapacityError: the capacity is more than the disk has, or holds no block.
        """
        if self._directory is None:
            return None
        with self._lock:
            is_first = self._files is None
            if self._files is None:
                name = fingerprint(programs, params, draft_head)
                self._files = FileTier(self._directory, name, block_bytes, self._capacity_bytes)
        return FileWriter(self._files, reports=is_first)


NO_FILES = SharedFiles(EngineConfig())


def _check_private(directory: Path) -> None:
    """Refuse a directory that others may write to: answers would be made from their blocks."""
    if (cause := obstacle(directory.resolve())) is not None:
        raise ValueError(f"kv_offloading_directory {directory} is not safe to read from: {cause}")
