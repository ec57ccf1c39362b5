"""The interface of a readout: values beside tokens that a prefill step gives some of its rows."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jaxinfer.serving.programs.kinds.kind import ProgramKey
from jaxinfer.serving.programs.resident import StepOutputs
from jaxinfer.serving.scheduler.schedule import ScheduledRow


class Readout(ABC):
    """A kind of values beside tokens. Its one instance stands in `registry.READOUTS`.

    Attributes:
        name: its key in `StepResult.readouts` and in `RequestGroup.take_readout`.
        needs_all_tokens: whether it reads hidden states of tokens that are not a row's last.
    """

    name: str
    needs_all_tokens: bool = False

    @abstractmethod
    def wants(self, row: ScheduledRow) -> bool:
        """True if a row gets a value from this step."""

    def pack(self, rows: Sequence[ScheduledRow], num_tokens: int) -> np.ndarray | None:
        """An array that `launch` reads on the device, or None.

        Args:
            rows: the step's rows, in packed order.
            num_tokens: T, padding included.
        """
        return None

    @abstractmethod
    def launch(
        self,
        head: Any,
        step: StepOutputs,
        packed: jax.Array | None,
        program: Callable[[ProgramKey], jax.stages.Compiled],
    ) -> jax.Array:
        """Compute the values of all rows; returns at once.

        Args:
            head: from `Architecture.head_params`.
            step: its hidden states, of all tokens where `needs_all_tokens`.
            packed: the array that `pack` returned, on the device.
        """

    @abstractmethod
    def unpack(self, fetched: np.ndarray, rows: Sequence[ScheduledRow]) -> list[Any]:
        """Each row's value on the host, None for rows that want none."""
