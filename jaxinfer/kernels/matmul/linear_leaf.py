"""The interface of projections that are neither plain nor quantized weights alone."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import jax
from jaxtyping import Array, Float

from jaxinfer.kernels.matmul.separate import SeparateProducts
from jaxinfer.kernels.matmul.weight_form import WeightForm


class OtherLinear(SeparateProducts, ABC):
    """A projection of another kind, which computes itself."""

    weight: Any
    """None of these has one that kernels may read."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """Outputs and inputs."""

    @property
    @abstractmethod
    def form(self) -> WeightForm:
        """A form that no kernel knows."""

    @property
    def operand(self) -> Any:
        """What kernels would take."""
        return self

    def kernel_inputs(self, x: jax.Array, *norm: Any) -> tuple[jax.Array, Any]:
        """What a kernel would read, and the norm left to it."""
        return x, norm[0] if norm else None

    @abstractmethod
    def of_outputs(self, select: Callable[[jax.Array], jax.Array]) -> "OtherLinear":
        """The projection to the outputs that `select` takes from an array ``[O, ...]``."""

    @abstractmethod
    def product(
        self, x: Float[Array, "*batch I"], dtype: jax.typing.DTypeLike
    ) -> Float[Array, "*batch O"]:
        """The projection of `x`, in `dtype`."""

    @abstractmethod
    def rows(self, indices: jax.Array) -> jax.Array:
        """Rows of the weight, as an embedding is read."""


class LinearLeaf(ABC):
    """A leaf in a layer's subtree that stands for a projection, in the place of its weight."""

    @abstractmethod
    def linear(self, form: Any) -> OtherLinear:
        """The projection; `form` as of `linear_of`."""
