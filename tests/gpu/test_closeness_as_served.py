"""As for the settings, on the engine that a user gets who sets nothing but sizes."""

import pytest

from jaxinfer.model.checkpoint.hub import BUNDLED_MODEL
from tests.gpu.bundled import ragged_prompts
from tests.gpu.closeness import measure

pytestmark = pytest.mark.gpu


def test_with_default_settings(hugging_face, record_property):
    closeness = measure(
        hugging_face,
        BUNDLED_MODEL,
        ragged_prompts(),
        num_outputs=32,
        num_kv_blocks=1024,
        max_num_seqs=16,
        max_num_batched_tokens=4096,
    )
    record_property("closeness", str(closeness))
    closeness.check()
