"""Prompts for the bundled model, and the engine settings that no token may depend on."""

from dataclasses import dataclass
from typing import Any

from jaxinfer.model.checkpoint.hub import BUNDLED_MODEL
from jaxinfer.model.text.tokenizer import Tokenizer
from scripts.evaluation.items.mixture import held_out_items

MAX_MODEL_LEN = 256
_LENGTHS = (1, 2, 15, 16, 17, 33, 63, 64, 65, 100, 128, 150)


@dataclass(frozen=True)
class Setting:
    """One way to batch. `SETTINGS` hold every pair of values of any two of the fields.

    Attributes:
        block_size: tokens in a page.
        budget: tokens in a step, so that prompts are prefilled in chunks; None takes them whole.
        prefix_caching: whether prompts share pages.
        tight: so few pages that requests are preempted.
    """

    block_size: int
    budget: int | None
    prefix_caching: bool
    tight: bool

    def __str__(self) -> str:
        return (
            f"block {self.block_size}, budget {self.budget}, "
            f"{'' if self.prefix_caching else 'no '}prefix cache, "
            f"{'tight' if self.tight else 'ample'}"
        )

    def engine_arguments(self) -> dict[str, Any]:
        """For `LLM`: room for one full-length sequence and a little more, or for all."""
        blocks = MAX_MODEL_LEN // self.block_size
        return {
            "block_size": self.block_size,
            "max_num_batched_tokens": self.budget,
            "enable_prefix_caching": self.prefix_caching,
            "num_kv_blocks": 1 + (blocks + 1 if self.tight else 16 * blocks),
            "max_model_len": MAX_MODEL_LEN,
            "max_num_seqs": 8,
            "num_decode_steps": 8 if self.block_size == 16 else 1,
        }


SETTINGS = (
    Setting(8, 32, prefix_caching=True, tight=True),
    Setting(8, None, prefix_caching=False, tight=False),
    Setting(16, 32, prefix_caching=False, tight=False),
    Setting(16, None, prefix_caching=True, tight=True),
    Setting(64, 32, prefix_caching=True, tight=False),
    Setting(64, None, prefix_caching=False, tight=True),
)


def ragged_prompts() -> list[list[int]]:
    """Stories cut at many lengths; the last ones share prefixes longer than a block."""
    tokenizer = Tokenizer.from_directory(BUNDLED_MODEL)
    try:
        texts = [item.prompt + item.answer for item in held_out_items("story", 40)]
        stories = [ids for text in texts if len(ids := tokenizer.encode(text)) >= max(_LENGTHS)]
    finally:
        tokenizer.close()
    prompts = [ids[:length] for ids, length in zip(stories, _LENGTHS, strict=False)]
    return [*prompts, prompts[-1][:80], prompts[-1], prompts[-2]]
