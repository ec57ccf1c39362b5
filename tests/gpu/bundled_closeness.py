"""Closeness of an engine on the bundled model."""

from jaxinfer.model.checkpoint.hub import BUNDLED_MODEL
from tests.gpu.bundled import Setting, ragged_prompts
from tests.gpu.closeness import Closeness, measure
from tests.gpu.hugging_face import HuggingFace


def measure_bundled(hugging_face: HuggingFace, setting: Setting, backend: str) -> Closeness:
    """Sample 32 tokens after each prompt and compare their distributions."""
    return measure(
        hugging_face,
        BUNDLED_MODEL,
        ragged_prompts(),
        num_outputs=32,
        model=str(BUNDLED_MODEL),
        dtype="bfloat16",
        attention_backend=backend,
        **setting.engine_arguments(),
    )
