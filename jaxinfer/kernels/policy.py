"""The kernel policy: how an engine's ops are computed, as one value, static in every program."""

from dataclasses import dataclass

from jaxinfer.kernels.choice import Backend


@dataclass(frozen=True)
class Kernels:
    """How the ops of a model are computed. Hashable; a program's identity contains its `repr`.

    What else an engine decides once about its kernels, such as results that do not depend on the
    batch, or launches that overlap, is another field with a default, which ops read here.

    Attributes:
        backend: whose kernels are used, from `choose_backend`. An op that has none of that backend
            for its operands is XLA's.
    """

    backend: Backend = "xla"


XLA = Kernels()
"""No kernels but XLA's: the reference, which runs anywhere."""
