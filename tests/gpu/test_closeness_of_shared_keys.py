"""Closeness to Hugging Face where many rows begin alike, and shared keys are read once."""

import itertools

import pytest

from jaxinfer.kernels.attention.shared_prefix import KEYS
from jaxinfer.model.checkpoint.hub import BUNDLED_MODEL
from jaxinfer.serving.runner import batch_builder
from tests.gpu.backends import skip_if_impossible
from tests.gpu.bundled import ragged_prompts
from tests.gpu.closeness import measure

pytestmark = pytest.mark.gpu

_SHARED = 4 * KEYS


def test_with_a_prompt_that_all_requests_begin_with(hugging_face, record_property, monkeypatch):
    skip_if_impossible("mosaic")
    keys_read_once, write = [], batch_builder.write_items

    def recorded(into, groups):
        keys_read_once.extend(group.keys for group in groups)
        write(into, groups)

    monkeypatch.setattr(batch_builder, "write_items", recorded)
    stories = [ids for ids in ragged_prompts() if len(ids) > 30]
    common = list(itertools.chain(*stories))[: _SHARED + 5]
    prompts = [common + ids[: 5 + i] for i, ids in enumerate(stories * 4)][:36]
    closeness = measure(
        hugging_face,
        BUNDLED_MODEL,
        prompts,
        num_outputs=8,
        model=str(BUNDLED_MODEL),
        dtype="bfloat16",
        attention_backend="mosaic",
        num_kv_blocks=2048,
        max_num_seqs=64,
        max_num_batched_tokens=4096,
    )
    record_property("closeness", str(closeness))
    assert max(keys_read_once) == _SHARED
    closeness.check()
