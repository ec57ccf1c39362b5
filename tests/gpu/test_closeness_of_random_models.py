"""As for the bundled model, for heads of 64 and 128 and many query heads per KV head."""

import pytest

from tests.gpu.closeness import measure
from tests.gpu.random_models import random_model, random_prompts

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "block_size"),
    [
        (2, 2, 128, 16),
        (10, 2, 128, 64),
        (16, 1, 128, 256),
        (4, 2, 64, 8),
        (8, 1, 64, 128),
    ],
)
def test_whatever_the_heads(
    hugging_face, record_property, tmp_path, heads, kv_heads, head_dim, block_size
):
    config, params = random_model(tmp_path, heads=heads, kv_heads=kv_heads, head_dim=head_dim)
    closeness = measure(
        hugging_face,
        tmp_path,
        random_prompts(),
        num_outputs=16,
        params=params,
        config=config,
        block_size=block_size,
        num_kv_blocks=1 + 8 * 256 // block_size,
        max_model_len=256,
        max_num_seqs=8,
        max_num_batched_tokens=128,
        num_decode_steps=1,
    )
    record_property("closeness", str(closeness))
    closeness.check()
