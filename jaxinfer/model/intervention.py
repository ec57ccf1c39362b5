"""A caller's change of the residual stream: `LLM(intervention=Intervention(...))`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, no_type_check

import jax
import jax.numpy as jnp

from jaxinfer.capture import layer_indices

InterventionFunction = Callable[[int, jax.Array, Any], jax.Array]
"""`(layer, residual, state) -> residual`; see `Intervention`."""


@no_type_check  # its fields check themselves, by name; run-time checkers would come first
@dataclass(frozen=True, eq=False)
class Intervention:
    """A change of the residual stream behind some layers, compiled into an engine's steps.

    It is made to the tokens of requests that ask for it, by `LLM.generate(..., intervene=True)`,
    prompts and answers alike; all other requests keep their values. It sees each token by itself,
    because which ones share a step changes from step to step.

    Attributes:
        function: `(layer, residual, state) -> residual`, any JAX function: the layer's index, a
            Python int; the stream behind it, `[1, E]` of one token, which the next layer would
            read; and the state. It returns the same shape and dtype. What a NaN reaches ends with
            an error, alone.
        layers: one index or several, from 0; None is all.
        state: a tree of arrays, which `LLM.set_intervention_state` replaces without compiling. The
            place for weights, too: arrays that the function closes over become constants of every
            program.

    Raises:
        TypeError: `function` can't be called, `layers` are no integers, or a leaf is no array.
    """

    function: InterventionFunction
    layers: int | Sequence[int] | None = None
    state: Any = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Check the fields; layers are kept in ascending order, leaves as arrays."""
        if not callable(self.function):
            kind = type(self.function).__name__
            raise TypeError(f"intervention: the function must be callable, got {kind}")
        if self.layers is not None:
            object.__setattr__(self, "layers", layer_indices("intervention", self.layers))
        object.__setattr__(self, "state", as_arrays(self.state))


def as_arrays(state: Any) -> Any:
    """A state with JAX arrays as leaves.

    Raises:
        TypeError: a leaf is no number and no array; names it.
    """

    def of_leaf(path: Any, leaf: Any) -> jax.Array:
        try:
            array = jnp.asarray(leaf)
            if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
                raise TypeError  # `jax.random.key_data` makes numbers of it
            return array
        except (TypeError, ValueError):
            name, kind = jax.tree_util.keystr(path), type(leaf).__name__
            raise TypeError(
                f"intervention: state{name} must be an array or a number, got {kind}"
            ) from None

    return jax.tree_util.tree_map_with_path(of_leaf, state)
