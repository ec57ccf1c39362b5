"""The programs that drafts add to an engine's, counted without compiling them."""

import pytest

from jaxinfer.config import EngineConfig
from jaxinfer.serving.programs.program_set import all_programs
from jaxinfer.serving.programs.speculative.lookup import LookupDrafter
from jaxinfer.serving.startup import plan
from tests.serving.programs.speculative.test_head_programs import drafter_of

METHODS = {
    "ngram": LookupDrafter(7, 5, 5),
    "suffix": LookupDrafter(7, 24, 1, as_long_as_match=True),
    "eagle3": drafter_of("eagle3"),
    "dflash": drafter_of("dflash"),
}


def programs(drafter, num_steps, enable_lora=False):
    sizes = {
        "max_num_seqs": 256,
        "max_num_batched_tokens": 16_384,
        "max_model_len": 40_960,
        "block_size": 16,
        "platform": "gpu",
        "num_decode_steps": num_steps,
    }
    config = EngineConfig(enable_lora=enable_lora)
    buckets = plan._shapes(config, plan.Inspection(), **sizes, drafter=drafter)
    return set(all_programs(buckets, swaps=False))


@pytest.mark.parametrize(
    ("num_steps", "enable_lora", "added"),
    [(1, False, 7), (8, False, 11), (1, True, 13), (8, True, 21)],
)
@pytest.mark.parametrize("method", METHODS)
def test_drafts_add_few_programs(method, num_steps, enable_lora, added):
    """At most twelve: each costs a second or more of a start. Adapters have each step again."""
    plain = programs(None, num_steps, enable_lora)
    found = programs(METHODS[method], num_steps, enable_lora)
    assert plain < found
    assert len(found - plain) == added <= 12 * (1 + enable_lora)
