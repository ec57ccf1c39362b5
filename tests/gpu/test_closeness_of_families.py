"""As for the bundled model, for every other family, with heads of 64 and 128."""

import pytest

from jaxinfer.model.longrope import LongRopeScaling
from jaxinfer.model.rope_scaling import RopeScaling
from tests.gpu.closeness import measure
from tests.gpu.random_models import random_model, random_prompts

pytestmark = pytest.mark.gpu

_YARN = RopeScaling(factor=4.0, original_max_position_embeddings=64)
_LONGROPE = LongRopeScaling((1.0,) * 48, (2.0,) * 48, 4, 1.1, True)
# Each with the heads of most of its published models, so that the module ends in two minutes.
FAMILIES = {
    "llama": (64, {"attention_bias": True}),
    "qwen2": (64, {}),
    "mistral": (128, {"rope_scaling": _YARN}),
    "ministral3": (128, {"rope_scaling": RopeScaling(4.0, 64, query_beta=0.3)}),
    "smollm3": (128, {"unrotated_layers": (1,)}),
    "phi3": (128, {"partial_rotary_factor": 0.75, "rope_scaling": _LONGROPE}),
    "olmo2": (128, {}),
}


@pytest.mark.parametrize("model_type", FAMILIES)
def test_whatever_the_family(hugging_face, record_property, tmp_path, model_type):
    head_dim, fields = FAMILIES[model_type]
    heads = {"heads": 256 // head_dim, "kv_heads": 128 // head_dim, "head_dim": head_dim}
    config, params = random_model(tmp_path, **heads, model_type=model_type, **fields)
    closeness = measure(
        hugging_face,
        tmp_path,
        random_prompts(),
        num_outputs=16,
        params=params,
        config=config,
        num_kv_blocks=128,
        max_model_len=256,
        max_num_seqs=8,
        max_num_batched_tokens=128,
        num_decode_steps=1,
    )
    record_property("closeness", str(closeness))
    closeness.check()
