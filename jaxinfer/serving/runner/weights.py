"""The parameters of a runner: used, overwritten, or asleep in host memory."""

from collections.abc import Mapping
from typing import Any

import jax

from jaxinfer.errors import StepError
from jaxinfer.model.adapters.device_slots import ADAPTERS, empty_slots
from jaxinfer.model.draft_head.weights import DRAFT_HEAD
from jaxinfer.serving.programs.programs import Programs
from jaxinfer.serving.runner import host_params, kv_cache
from jaxinfer.serving.runner.device_params import ParamsWriter, check_like

_BESIDE = (DRAFT_HEAD, ADAPTERS)


class Weights:
    """The parameters of a runner: the model's, and beside them a draft head's or adapters.

    The model's may be replaced by others; what is beside them stays.

    Args:
        params: the parameter tree, placed as `programs` wants it; used without a copy.
        owned: whether the runner alone holds the parameters, so that they may be overwritten.

    Attributes:
        params: the tree; None while it sleeps.
        wanted: the model's required parameters: a tree of `jax.ShapeDtypeStruct` with shardings.
    """

    def __init__(self, params: Mapping[str, Any], programs: Programs, *, owned: bool) -> None:
        self.params: Any = params
        self.wanted, self._wanted_beside = _split(programs.params)
        self._owned = owned
        self._sleeping_beside: Any = {}
        self._sleeping: Any = None
        self._head_of = programs.head_of

    @property
    def head(self) -> Any:
        """From `Architecture.head_params`; None while the parameters sleep."""
        return self._head_of(self.params)

    def update(self, params: Mapping[str, Any] | ParamsWriter) -> None:
        """Use other parameters: see `Runner.update_params`."""
        if isinstance(params, ParamsWriter):
            self._use(self._written(params), owned=True)
        else:
            check_like(params, self.wanted, placed=True)
            self._use(params, owned=False)

    def sleep(self, *, keep: bool) -> None:
        """Free their memory, if it is owned; with `keep`, a copy stays in host memory.

        Raises:
            Exception: there is too little host memory; nothing has changed.
        """
        model, beside = _split(self.params)
        kept = host_params.to_host(model) if keep else None
        self._sleeping, self._sleeping_beside = kept, host_params.to_host(beside)
        if self._owned:
            kv_cache.free(model)
        kv_cache.free(beside)
        self.params, self._owned = None, False

    def wake(self) -> None:
        """Take the parameters back from host memory, if any are there.

        Raises:
            Exception: there is too little device memory; the copy on the host stays.
        """
        if self._sleeping is None:
            return
        self._use(host_params.to_devices(self._sleeping, self.wanted), owned=True)
        kv_cache.free(self._sleeping)
        self._sleeping = None

    def empty_adapters(self) -> None:
        """Make the adapters' slots anew, after a step that raised: it may have destroyed them.

        The scheduler has them written again.
        """
        if self.params is not None and ADAPTERS in self.params:
            kv_cache.free(self.params[ADAPTERS])
            self.params[ADAPTERS] = empty_slots(self._wanted_beside[ADAPTERS])

    def close(self) -> None:
        """Forget the parameters, and a copy that sleeps; may be called again."""
        self.params = self._sleeping = None
        self._sleeping_beside = {}

    def _use(self, model: Mapping[str, Any], *, owned: bool) -> None:
        """Use other parameters of the model, with those beside it as they are, or were."""
        if self.params is None:
            beside = host_params.to_devices(self._sleeping_beside, self._wanted_beside)
            kv_cache.free(self._sleeping_beside)
            self._sleeping_beside = {}
        else:
            _, beside = _split(self.params)
        self.params, self._owned = {**model, **beside}, owned

    def _written(self, writer: ParamsWriter) -> Mapping[str, Any]:
        old = _split(self.params)[0] if self._owned else None
        try:
            return writer.write(self.wanted, old)
        except Exception as error:
            if any(leaf.is_deleted() for leaf in jax.tree.leaves(old)):
                raise StepError(f"the weights were lost while being written: {error}") from error
            raise


def _split(params: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The model's part of a tree, and what is beside it."""
    model = {name: node for name, node in params.items() if name not in _BESIDE}
    return model, {name: node for name, node in params.items() if name in _BESIDE}
