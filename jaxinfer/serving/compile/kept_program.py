"""A program that is read from disk as it was compiled, or is compiled and then kept there."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax

from jaxinfer.serving.compile.cache.executable_store import ExecutableStore


@dataclass(frozen=True)
class KeptProgram:
    """Takes the place of a lowered program where executables are kept.

    Attributes:
        store: where.
        identity: of what it compiles to.
        devices: that it runs on.
        lowered: None where the store holds it.
    """

    store: ExecutableStore
    identity: str
    devices: Sequence[Any]
    lowered: jax.stages.Lowered | None

    def compile(self, compiler_options: dict[str, Any] | None = None) -> jax.stages.Compiled:
        """Read or compile it; any thread may.

        Args:
            compiler_options: of XLA, which `identity` holds, too.

        Raises:
            UnreadableExecutableError: the store's entry can't be read; lower it, and compile that.
        """
        if self.lowered is None:
            return self.store.load(self.identity, self.devices)
        compiled = self.lowered.compile(compiler_options=compiler_options)
        self.store.save(self.identity, compiled)
        return compiled
