"""What a pipeline's step is given: its batch on every stage, and tokens still in flight."""

from collections import deque
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jaxinfer.serving.programs.layout import StepShape
from jaxinfer.serving.programs.pipeline.step_parts import STEP_PARTS


class TokenVersions:
    """Copies of the newest tokens, which the last stage samples, on the first stage.

    A step on the first stage must not wait for the sampler of the step before it, which has not yet
    run on the last. It is given the oldest copy that has the tokens of its own rows: where rows
    take turns over S steps, the copy of the step S before.

    Args:
        sharding: of copies: whole for every device of the first stage.
        num_slots: of the tokens.
        num_stages: S.
    """

    def __init__(self, sharding: Any, num_slots: int, num_stages: int) -> None:
        self._sharding = sharding
        self._versions: deque[tuple[int, jax.Array]] = deque(maxlen=num_stages)
        self._sampled_by = np.zeros(num_slots, np.int64)
        self._num_steps = 0

    def of_step(self, shape: StepShape, packed: np.ndarray, last_tokens: jax.Array) -> jax.Array:
        """The tokens that a step is fed, once for each step that is launched, in their order.

        Args:
            shape: the step's bucket.
            packed: its batch.
            last_tokens: newest tokens behind all steps before, on the last stage.
        """
        part, batch = STEP_PARTS[type(shape)], shape.split(packed)
        self.keep(last_tokens)
        needed = int(self._sampled_by[part.fed_slots(batch)].max(initial=0))
        self._num_steps += 1
        self._sampled_by[part.sampled_slots(batch)] = self._num_steps
        return next(tokens for step, tokens in self._versions if step >= needed)

    def keep(self, last_tokens: jax.Array) -> jax.Array:
        """A copy of the newest tokens, which is now the newest version."""
        copied = jax.device_put(last_tokens, self._sharding, may_alias=False)
        self._versions.append((self._num_steps, copied))
        return copied

    def clear(self) -> None:
        """Forget all copies, after a step that raised: they may be what it should have written."""
        self._versions.clear()
        self._sampled_by[:] = 0
        self._num_steps = 0


class StagedBatch:
    """A step's batch on the host's memory for each stage.

    Args:
        arrays: the same packed vector for each stage's devices.
        packed: its values.
        versions: of the engine.
    """

    def __init__(
        self, arrays: Sequence[jax.Array], packed: np.ndarray, versions: TokenVersions
    ) -> None:
        self.arrays = arrays
        self._packed = packed
        self._versions = versions

    def tokens(self, shape: StepShape, last_tokens: jax.Array) -> jax.Array:
        """See `TokenVersions.of_step`."""
        return self._versions.of_step(shape, self._packed, last_tokens)
