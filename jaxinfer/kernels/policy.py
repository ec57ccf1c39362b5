"""The kernel policy: an engine's choice of kernels as one value, static in every program."""

from dataclasses import dataclass

from jaxinfer.kernels.choice import Backend


@dataclass(frozen=True)
class Kernels:
    """The choice of kernels for a model's ops. Hashable; a program's identity contains its `repr`.

    Further decisions that an engine makes once about its kernels, such as batch-invariant results
    or overlapping launches, belong here as fields with defaults, which ops read.

    Attributes:
        backend: the backend of the kernels, from `choose_backend`. An op without a kernel of that
            backend for its operands runs in XLA.
    """

    backend: Backend = "xla"


XLA = Kernels()
"""No kernels but XLA's: the reference, which runs anywhere."""
