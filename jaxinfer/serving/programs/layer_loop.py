"""The loop over a model's layers, as a value of the step."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import jax

from jaxinfer.model.layer_kind import LayerKind
from jaxinfer.model.layers.context import LayerStep, Parts


@runtime_checkable
class LayerLoop(Protocol):
    """Passes the tokens of a step through every layer; hashable, told apart by its `repr`."""

    @property
    def num_probed(self) -> int:
        """Layers of each kind that take as much temporary memory as any number of them."""
        ...

    @property
    def runs_user_code(self) -> bool:
        """Whether a caller's function is a part of it."""
        ...

    def beside(self, dtype: Any) -> tuple[Any, ...]:
        """Further entries of the KV cache, as `KVCacheSpec.beside` describes them."""
        ...

    def layer(self, step: Callable[..., Any], /) -> LayerStep:
        """A layer's function, jitted; of each layer `__call__` gets what this one returns.

        Args:
            step: a `LayerStep` that may also be given a `tap`.
        """
        ...

    def __call__(
        self,
        params: Mapping[str, Any],
        kinds: Sequence[LayerKind],
        kv: Sequence[Any],
        parts: Parts,
        step_of: Callable[[int, LayerKind], LayerStep],
        *,
        whole: Any,
        last_rows: jax.Array | None,
    ) -> tuple[tuple[Any, ...], jax.Array]:
        """As `decoder.run_layers`, of the whole tree and all entries of the KV cache."""
        ...
