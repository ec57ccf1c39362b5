"""How many tokens go through each expert."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int32


def expert_load(
    chosen: Int32[Array, "T k"], is_token: Bool[Array, " T"] | None, num_experts: int
) -> Int32[Array, " X"]:
    """The number of tokens that go through each expert.

    Args:
        chosen: the experts of each token, in [0, X).
        is_token: False for padding, which counts nowhere; None where there is none.
        num_experts: X.
    """
    # As `xla.mixture` sorts tokens by their experts, so that XLA counts once for both.
    if is_token is not None:
        chosen = jnp.where(is_token[:, None], chosen, num_experts)
    return jnp.zeros(num_experts, jnp.int32).at[chosen.reshape(-1)].add(1, mode="drop")
