"""The shapes of the bundled models and the two schedules they can be trained by."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from jaxinfer.model.config import ModelConfig
from jaxinfer.model.experts import Experts

MAX_POSITIONS = 4096


def model_config(vocab_size: int, eos_token_ids: tuple[int, ...], bos_token_id: int) -> ModelConfig:
    """A Qwen3 of 3.7 million parameters: the largest that fits in 8 MB of bfloat16."""
    return ModelConfig(
        vocab_size=vocab_size,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=128,
        rope_theta=1_000_000.0,
        max_position_embeddings=MAX_POSITIONS,
        tie_word_embeddings=True,
        dtype="bfloat16",
        eos_token_ids=eos_token_ids,
        bos_token_id=bos_token_id,
    )


def with_experts(dense: ModelConfig) -> ModelConfig:
    """The same shape and size with experts, a quarter of whose parameters a token goes through."""
    return replace(dense, model_type="qwen3_moe", experts=Experts(8, 2, 64))


@dataclass(frozen=True)
class Phase:
    """A number of optimizer steps on batches of one shape."""

    steps: int
    rows: int
    length: int

    def shortened(self, share: float) -> "Phase":
        """With this share of the steps, at least one."""
        return replace(self, steps=max(1, round(self.steps * share)))


@dataclass(frozen=True)
class Schedule:
    """How long and how fast to learn.

    Attributes:
      num_items: training items drawn; epochs repeat them in a new order.
      phases: batch shapes, one after the other; a phase of long rows makes the model meet every
        position up to `MAX_POSITIONS`.
      learning_rate: the peak, after `warmup` steps, before a cosine to a twentieth.
      warmup: steps.
      compute_dtype: of the forward and backward pass; the master weights are float32.
      num_questions: held-out items of each kind asked at the end, by the plain forward, which is
        slow on a CPU; `python -m scripts.evaluation --model` asks more, faster.
    """

    num_items: int
    phases: tuple[Phase, ...]
    learning_rate: float
    warmup: int
    compute_dtype: str
    num_questions: int

    @property
    def num_steps(self) -> int:
        """Optimizer steps of all phases."""
        return sum(phase.steps for phase in self.phases)


SCHEDULES: Mapping[str, Schedule] = {
    "gpu": Schedule(
        num_items=120_000,
        phases=(Phase(2600, 64, 512), Phase(200, 8, 4096), Phase(600, 64, 512)),
        learning_rate=2e-3,
        warmup=200,
        compute_dtype="bfloat16",
        num_questions=200,
    ),
    "cpu": Schedule(
        num_items=60_000,
        phases=(Phase(1100, 36, 128), Phase(700, 12, 384)),
        learning_rate=3e-3,
        warmup=100,
        compute_dtype="float32",
        num_questions=10,
    ),
}
