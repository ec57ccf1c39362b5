"""The mesh axis of tensor parallelism, as a model's functions see it, with its sums."""

from __future__ import annotations

import dataclasses

import jax
from jaxtyping import Array, Int32

from jaxinfer.kernels.rounding import rounded_add

MeshAxes = str | tuple[str, ...]  # Of a mesh; several are taken as one, the first outermost.


@dataclasses.dataclass(frozen=True)
class TensorAxis:
    """A mesh axis of tensor parallelism, inside `shard_map`.

    Attributes:
        name: the axis's name.
        peers: int32 ``[N, 2]``, peer buffers for small sums by the kernel of
            `mosaic/all_reduce.py`; None leaves all sums to XLA. The kernel's sums must follow one
            another: each has to depend on the one before.
        swaps: whether the two devices of the axis sum by sending each other their whole operands.
        experts: the one over which experts are split whole; None where devices share each of them.
    """

    name: MeshAxes
    peers: Int32[Array, "N 2"] | None = None
    swaps: bool = False
    experts: str | None = None

    @property
    def size(self) -> int:
        """N, devices along the axis."""
        return jax.lax.axis_size(self.name)

    def index(self) -> jax.Array:
        """This device's place on the axis, an int32 scalar."""
        return jax.lax.axis_index(self.name)

    def sum(self, x: jax.Array, *, onto: jax.Array | None = None) -> jax.Array:
        """The sum of all devices' `x`; rounded, then added to `onto` if that is given."""
        if self.peers is not None:
            # It imports GPU-only packages, so it loads when it is first chosen.
            from jaxinfer.kernels.collectives.mosaic import all_reduce

            if all_reduce.supports(x.size, x.dtype, self.size):
                return all_reduce.all_reduce(x, self.peers, onto=onto)
        total = rounded_add(x, self.swap(x)) if self.swaps else jax.lax.psum(x, self.name)
        return total if onto is None else rounded_add(onto, total)

    def swap(self, x: jax.Array) -> jax.Array:
        """The other device's `x`, where there are two."""
        return jax.lax.ppermute(x, self.name, [(0, 1), (1, 0)])

    def alone(self) -> TensorAxis:
        """The axis for sums that may run side by side; XLA then performs all of them.

        Two GPUs that reach each other's memory swap: their copy engines do that, beside products
        that then have all multiprocessors, some of which NCCL's kernels would take.
        """
        swaps = self.peers is not None and self.size == 2
        return dataclasses.replace(self, peers=None, swaps=swaps)
