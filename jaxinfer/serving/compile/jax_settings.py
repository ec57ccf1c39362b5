"""Fixes JAX's settings in an engine's threads, independent of those of its caller (say, a trainer).

JAX has each setting for all threads and for one; an engine's threads have their own, so that none
of its programs fails, slows down or draws other tokens because of the caller's.
"""

import contextlib
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax._src.config import config_states
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.typing import DTypeLike

_WITHOUT_A_PUBLIC_CONTEXT = {
    "jax_use_shardy_partitioner": True,
    "jax_scan3": False,  # with it, searches for thresholds find others
    "jax_error_checking_behavior_nan": "ignore",
    "jax_error_checking_behavior_divide": "ignore",
    "jax_error_checking_behavior_oob": "ignore",
}


@dataclass(frozen=True)
class JaxSettings:
    """The settings that an engine adopts from its caller, once; the others that matter are fixed.

    Attributes:
        matmul_precision: JAX's `default_matmul_precision`, the precision of products.
        dtype_promotion: its `numpy_dtype_promotion`, for the caller's functions in a step.
    """

    matmul_precision: str | None
    dtype_promotion: Any

    @classmethod
    def here(cls) -> "JaxSettings":
        """The settings of the calling thread."""
        config = jax.config
        return cls(config.jax_default_matmul_precision, config.jax_numpy_dtype_promotion)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Apply them in the calling thread inside this block, whatever is set for all threads."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(jax.set_mesh(None))
            stack.enter_context(jax.default_device(None))
            # Settings that change a trace.
            stack.enter_context(jax.enable_x64(False))
            stack.enter_context(jax.numpy_rank_promotion("allow"))
            stack.enter_context(jax.numpy_dtype_promotion(self.dtype_promotion))
            stack.enter_context(jax.default_matmul_precision(self.matmul_precision))
            stack.enter_context(jax.default_prng_impl("threefry2x32"))
            stack.enter_context(jax.threefry_partitionable(True))
            stack.enter_context(jax.enable_custom_prng(False))
            stack.enter_context(jax.legacy_prng_key("allow"))
            stack.enter_context(jax.remove_size_one_mesh_axis_from_type(False))
            # Settings that forbid operations.
            stack.enter_context(jax.disable_jit(False))
            stack.enter_context(jax.no_tracing(False))
            stack.enter_context(jax.no_execution(False))
            stack.enter_context(jax.transfer_guard("allow"))
            stack.enter_context(jax.array_garbage_collection_guard("allow"))
            stack.enter_context(jax.thread_guard(False))
            # Checks: masked logits are infinite, and steps themselves look for values that are not
            # finite.
            stack.enter_context(jax.debug_nans(False))
            stack.enter_context(jax.debug_infs(False))
            stack.enter_context(jax.debug_key_reuse(False))
            stack.enter_context(jax.check_tracer_leaks(False))
            stack.enter_context(jax.enable_checks(False))
            for name, value in _WITHOUT_A_PUBLIC_CONTEXT.items():
                if (state := config_states.get(name)) is not None:  # in this version of JAX
                    stack.enter_context(state(value))
            yield


def check_matmul_precision(mesh: Mesh, dtype: DTypeLike) -> None:
    """Check, before any request, that the devices have products of the precision that is set.

    Raises:
        ValueError: names the setting and the devices.
    """
    if (precision := jax.config.jax_default_matmul_precision) is None:
        return
    square = jax.ShapeDtypeStruct((8, 8), dtype, sharding=NamedSharding(mesh, PartitionSpec()))
    product = jax.jit(functools.partial(jnp.dot, preferred_element_type=jnp.float32))
    try:
        product.lower(square, square)
    except ValueError as error:
        raise ValueError(
            f"JAX's setting jax_default_matmul_precision is {precision!r}, which "
            f"{mesh.devices.flat[0]} can't do ({error}); set another, or None, before the engine "
            "starts"
        ) from error
