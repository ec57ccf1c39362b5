"""The parameters of a runner: used, overwritten, or asleep in host memory."""

from collections.abc import Mapping
from typing import Any

import jax

from jaxinfer.errors import StepError
from jaxinfer.serving.programs.programs import Programs
from jaxinfer.serving.runner import host_params, kv_cache
from jaxinfer.serving.runner.device_params import ParamsWriter, check_like


class Weights:
    """The parameters of a runner.

    Args:
        params: the parameter tree, placed as `programs` wants it; used without a copy.
        programs: the engine's.
        owned: whether the runner alone holds the parameters, so that they may be overwritten.

    Attributes:
        params: the tree; None while it sleeps.
        wanted: the required parameters: a tree of `jax.ShapeDtypeStruct` with shardings.
    """

    def __init__(self, params: Mapping[str, Any], programs: Programs, *, owned: bool) -> None:
        self.params: Any = params
        self.wanted = programs.params
        self._owned = owned
        self._sleeping: Any = None
        self._head_of = programs.context.architecture.head_params

    @property
    def head(self) -> Any:
        """From `Architecture.head_params`; None while the parameters sleep."""
        return None if self.params is None else self._head_of(self.params)

    def update(self, params: Mapping[str, Any] | ParamsWriter) -> None:
        """Use other parameters: see `Runner.update_params`."""
        if isinstance(params, ParamsWriter):
            self.params, self._owned = self._written(params), True
        else:
            check_like(params, self.wanted, placed=True)
            self.params, self._owned = params, False

    def sleep(self, *, keep: bool) -> None:
        """Free their memory, if it is owned; with `keep`, a copy stays in host memory.

        Raises:
            Exception: there is too little host memory; nothing has changed.
        """
        self._sleeping = host_params.to_host(self.params) if keep else None
        if self._owned:
            kv_cache.free(self.params)
        self.params, self._owned = None, False

    def wake(self) -> None:
        """Take the parameters back from host memory, if any are there.

        Raises:
            Exception: there is too little device memory; the copy on the host stays.
        """
        if self._sleeping is None:
            return
        self.params = host_params.to_devices(self._sleeping, self.wanted)
        self._owned = True
        kv_cache.free(self._sleeping)
        self._sleeping = None

    def close(self) -> None:
        """Forget the parameters, and a copy that sleeps; may be called again."""
        self.params = self._sleeping = None

    def _written(self, writer: ParamsWriter) -> Mapping[str, Any]:
        old = self.params if self._owned else None
        try:
            return writer.write(self.wanted, old)
        except Exception as error:
            if any(leaf.is_deleted() for leaf in jax.tree.leaves(old)):
                raise StepError(f"the weights were lost while being written: {error}") from error
            raise
