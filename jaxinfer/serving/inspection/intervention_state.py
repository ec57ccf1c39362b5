"""The state of an intervention on a runner's devices."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxinfer.kernels.attention.kv_cache_spec import Tally
from jaxinfer.serving.programs.programs import Programs
from jaxinfer.serving.programs.upload import upload
from jaxinfer.serving.runner.runner import Runner


class InterventionState:
    """Keeps the state in the entries of the KV cache that are its, over the lives of caches.

    Args:
        runner: of an engine with an intervention.
        programs: of the same engine.
        leaves: the state to begin with.
    """

    def __init__(self, runner: Runner, programs: Programs, leaves: Sequence[Any]) -> None:
        self._runner = runner
        self._whole = programs.last_tokens.sharding
        self._leaves: list[np.ndarray] = []
        runner.prepare = lambda arrays: (self._filled(arrays[0]), *arrays[1:])
        self.replace(leaves)

    def replace(self, leaves: Sequence[Any]) -> None:
        """Use other leaves of the same shapes from the next launch on; in the engine's thread.

        Raises:
            Exception: they can't be placed on the devices; the old ones stay.
        """
        before, self._leaves = self._leaves, [np.array(leaf) for leaf in leaves]
        self._runner.launches.wait()
        launcher = self._runner.launcher
        if launcher.resident.kv is None:
            return
        try:
            kv = self._filled(launcher.resident.kv)
        except Exception:
            self._leaves = before
            raise
        launcher.resident = launcher.resident._replace(kv=kv)

    @property
    def leaves(self) -> list[np.ndarray]:
        """The state's leaves, on the host."""
        return self._leaves

    def _filled(self, kv: Sequence[Any]) -> tuple[Any, ...]:
        """A cache with this state; the next step's program takes its memory."""
        count = len(kv) - len(self._leaves)
        # Each time a copy of its own, which may be overwritten.
        placed = [Tally(upload(leaf.copy(), self._whole)) for leaf in self._leaves]
        return (*kv[:count], *placed)
