"""A loop over a model's layers that also counts how many tokens went through each expert."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Int32, UInt32

from jaxinfer.kernels.attention.kv_cache_spec import Tally
from jaxinfer.model.layer_kind import LayerKind
from jaxinfer.model.layers import decoder
from jaxinfer.model.layers.context import LayerStep, Params, Parts
from jaxinfer.model.layers.watching import StepOf
from jaxinfer.serving.programs.step_inputs import StepInputs

Counts = UInt32[Array, "L X_plus_2"]
"""Of each of L layers with experts: tokens through each of X experts, experts with a token, and
whether there was one."""


class _Counted(NamedTuple):
    """What a layer returns: its pages, and the load of its experts from each part of the tokens."""

    pages: Any
    loads: tuple[Int32[Array, " X"], ...]


@dataclass(frozen=True)
class CountedExperts:
    """A `LayerLoop` that adds a step's counts to a `Tally` behind the layers' pages.

    The counts are uint32 ``[2, L, X + 2]``: sums of `Counts` modulo 2**32, and how often each has
    passed that, so that none overflows. A step without a token adds nothing.

    Attributes:
        num_layers: L, layers with experts.
        num_experts: X.
    """

    num_layers: int
    num_experts: int
    num_probed = 2
    runs_user_code = False

    def beside(self, dtype: DTypeLike) -> tuple[Tally]:
        """The counts."""
        shape = (2, self.num_layers, self.num_experts + 2)
        return (Tally(jax.ShapeDtypeStruct(shape, jnp.uint32)),)

    def layer(self, step: Callable[..., Any]) -> LayerStep:
        """The function jitted, with its loads beside its pages."""

        @functools.wraps(step)
        def counted(*args: Any) -> tuple[_Counted, Any]:
            loads: list[jax.Array] = []

            def tap(name: str, told: jax.Array) -> None:
                if name == "experts":
                    loads.append(told)

            pages, residuals = step(*args, tap=tap)
            return _Counted(pages, tuple(loads)), residuals

        return jax.jit(counted)

    def __call__(
        self,
        params: Params,
        kinds: Sequence[LayerKind],
        kv: Sequence[Any],
        parts: Parts,
        step_of: StepOf,
        *,
        whole: StepInputs,
        last_rows: jax.Array | None,
    ) -> tuple[tuple[Any, ...], jax.Array]:
        """Every layer in turn, and then the counts."""
        *pages, tally = kv
        layers, options = params["model"]["layers"], {"whole": whole, "last_rows": last_rows}
        written, x = decoder.run_layers(layers, kinds, pages, parts, step_of, **options)
        loads = [functools.reduce(jnp.add, each.loads) for each in written if each.loads]
        has_token = jnp.any(whole.slot_mapping > 0)  # padding writes to slot 0
        tally = Tally(add(tally.counts, counts_of(loads, has_token)))
        return (*(each.pages for each in written), tally), x


@jax.named_scope("experts")
def counts_of(loads: Sequence[Int32[Array, " X"]], has_token: jax.Array) -> Counts:
    """The counts of one step; all zero without a token."""
    load = jnp.stack(loads)
    distinct = jnp.sum(load > 0, axis=1, keepdims=True, dtype=jnp.int32)
    counts = jnp.concatenate([load, distinct, jnp.ones_like(distinct)], axis=1)
    return jnp.where(has_token, counts, 0).astype(jnp.uint32)


@jax.named_scope("experts")
def add(total: UInt32[Array, "2 L X_plus_2"], counts: Counts) -> UInt32[Array, "2 L X_plus_2"]:
    """The sum, with a carry where the lower half passes 2**32."""
    missing = total.shape[1] - counts.shape[0]  # fewer layers, while memory is planned
    counts = jnp.pad(counts, ((0, missing), (0, 0)))
    low = total[0] + counts
    return jnp.stack([low, total[1] + (low < counts).astype(jnp.uint32)])
