"""One decoding forward pass, traced once, for all programs that decode with the same shapes.

A decode step and the programs of it with its sampler, one for each way of sampling, have the same
kernels, and lowering them is most of tracing. Here they are lowered into one module, which each
program then calls. XLA inlines the call, so it compiles the same program.
"""

from collections.abc import Hashable, Mapping
from typing import Any

import jax
from jax.sharding import AbstractMesh
from jaxtyping import Array, Float, Int32

from jaxinfer.serving.compile.program_store import export_function
from jaxinfer.serving.programs.step_inputs import StepInputs
from jaxinfer.serving.programs.steps import KVCache, StepContext, feed_last_tokens


class SharedForward:
    """`feed_last_tokens` that remembers its traced forward passes."""

    def __init__(self, platform: str) -> None:
        self._platform = platform
        self._traced: dict[Hashable, jax.export.Exported] = {}

    def __call__(
        self,
        params: Mapping[str, Any],
        kv: KVCache,
        batch: StepInputs,
        last_tokens: Int32[Array, " slots"],
        peers: Int32[Array, "one N 2"] | None,
        *,
        context: StepContext,
    ) -> tuple[KVCache, Float[Array, "B E"], Int32[Array, " B"]]:
        """Call `feed_last_tokens`; nothing is shared on several devices, whose sums need a mesh."""
        if context.mesh.size > 1:
            return feed_last_tokens(params, kv, batch, last_tokens, peers, context=context)
        arguments = (params, kv, batch, last_tokens)
        leaves, structure = jax.tree.flatten(arguments)
        key = structure, tuple((leaf.shape, leaf.dtype) for leaf in leaves), context
        if key not in self._traced:
            self._traced[key] = self._trace(arguments, context)
        call: Any = self._traced[key].call  # JAX says that it gives one array
        return call(*arguments)

    def _trace(self, arguments: tuple[Any, ...], context: StepContext) -> jax.export.Exported:
        def forward(params: Any, kv: Any, batch: StepInputs, last_tokens: jax.Array) -> Any:
            return feed_last_tokens(params, kv, batch, last_tokens, None, context=context)

        structs = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), arguments)
        # Of one device, in any mesh around the caller. Some kernels look up which device it is.
        device = jax.sharding.get_abstract_mesh().abstract_device
        with jax.sharding.use_abstract_mesh(AbstractMesh((), (), abstract_device=device)):
            return export_function(jax.jit(forward), structs, self._platform)
