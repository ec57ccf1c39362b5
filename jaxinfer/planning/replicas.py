"""Replicas of a model behind one queue: the share of a batch that each computes."""

import dataclasses

from jaxinfer.config import EngineConfig


@dataclasses.dataclass(frozen=True)
class Replicas:
    """How many there are, and what for.

    Attributes:
        count: of the model, each on devices of its own.
        num_prefill: of these, that compute prompts alone; 0 where all do both.
    """

    count: int
    num_prefill: int

    @classmethod
    def of(cls, config: EngineConfig) -> "Replicas":
        """Of an engine."""
        return cls(config.data_parallel_size, config.prefill_replicas)

    @property
    def num_decoding(self) -> int:
        """Replicas that hold running sequences."""
        return self.count - self.num_prefill

    def rows(self, sequences: int) -> int:
        """Sequences that run at once in the fullest replica."""
        return -(-sequences // self.num_decoding)

    def prompts(self, sequences: int) -> int:
        """Prompts that the fullest replica computes, of sequences that arrive together."""
        return -(-sequences // (self.num_prefill or self.count))
