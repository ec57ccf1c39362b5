"""Plans count what drafts take: as much as an engine with them holds on each device."""

import shutil

import jax
import pytest

from jaxinfer import LLM
from jaxinfer.config import EngineConfig
from jaxinfer.errors import ModelLoadError
from jaxinfer.model.checkpoint.hub import BUNDLED_DRAFT_HEADS, BUNDLED_MODEL
from jaxinfer.planning import plan
from jaxinfer.planning.drafts import NO_DRAFTS, draft_memory
from jaxinfer.planning.model_files import read_shape
from jaxinfer.planning.operations import weight_bytes_per_device
from jaxinfer.serving.programs.choose_buckets import choose_buckets
from jaxinfer.serving.programs.speculative.lookup import LookupDrafter

HEAD = {"method": "eagle3", "model": "bundled"}
_, BUNDLED = read_shape(BUNDLED_MODEL)


def held_by_a_device(tree):
    """Bytes of a tree of arrays on the first device."""
    device = jax.devices()[0]
    return sum(
        shard.data.nbytes
        for leaf in jax.tree.leaves(tree)
        for shard in leaf.addressable_shards
        if shard.device == device
    )


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"speculative_config": HEAD}, marks=pytest.mark.slow("alone")),
        {"speculative_config": HEAD, "tensor_parallel_size": 2, "kv_cache_dtype": "int8"},
        {"speculative_config": {"method": "dflash", "model": "bundled"}},
        {"speculative_config": {"method": "suffix", "corpus_tokens": 100}},
        {},
    ],
    ids=["head", "head, 2 devices and int8 pages", "dflash", "texts", "none"],
)
def test_a_device_holds_what_the_plan_says(options):
    config = EngineConfig(**options, max_num_seqs=8, max_model_len=512)
    shape, drafts = BUNDLED, draft_memory(BUNDLED, "bfloat16", config)
    num_devices = config.tensor_parallel_size
    kv_bytes = shape.kv_bytes_per_token(2, num_devices, config.kv_cache_dtype)
    sizes = {"max_num_seqs": 8, "max_model_len": 512, "num_kv_blocks": 64}
    with LLM(**options, **sizes, dtype="bfloat16", show_progress=False) as llm:
        runner = llm._loaded.replicas[0].runner
        runner.reset_cache()  # which the first request would do
        held = runner.resident
        planned = weight_bytes_per_device(shape, "bfloat16", num_devices) + drafts.weight_bytes
        assert held_by_a_device(held.params) == planned
        assert held_by_a_device(held.kv) == 64 * 16 * (kv_bytes + drafts.bytes_per_token)
        assert held_by_a_device(held.drafts) == drafts.text_bytes


def test_a_head_leaves_fewer_blocks_and_is_named_with_its_time():
    plain = plan(BUNDLED_MODEL, "h100", dtype="bfloat16")
    drafts = plan(BUNDLED_MODEL, "h100", dtype="bfloat16", speculative_config=HEAD)
    # 4 kilobytes of keys and values, and one of the head's: (2 * 2 * 64 + 256) * 2 bytes.
    assert (drafts.memory.kv_bytes_per_token, drafts.memory.draft_bytes_per_token) == (4096, 1024)
    fewer = drafts.memory.num_kv_blocks / plain.memory.num_kv_blocks
    assert fewer == pytest.approx(4 / 5, rel=0.01)
    # A prefill of 16,384 tokens also holds three states of 256 values.
    more = drafts.memory.step_bytes - plain.memory.step_bytes
    assert more == drafts.shape.hidden_size * 3 * 16_384 * 2
    assert "3 times in a step" in drafts.notes[-1]
    assert drafts.to_dict()["memory"]["kv_bytes"] == drafts.memory.num_kv_blocks * 16 * 5120


@pytest.mark.parametrize("most", [1, 3, 4, 8, 40, 100])
@pytest.mark.parametrize("count", [1, 7, 15])
def test_a_step_with_drafts_has_no_more_rows_than_are_planned(most, count):
    config = EngineConfig(
        max_num_seqs=most,
        speculative_config={"method": "ngram", "num_speculative_tokens": count},
    )
    buckets = choose_buckets(
        max_num_seqs=most,
        max_num_batched_tokens=512,
        max_model_len=512,
        block_size=16,
        platform="gpu",
        drafter=LookupDrafter(count, 5, 5),
    )
    rows = [size * (drafter.num_tokens + 1) for size, drafter in buckets.speculative]
    assert max(*rows, most) <= draft_memory(BUNDLED, "bfloat16", config).most_rows(most)
    assert NO_DRAFTS.most_rows(most) == most


def test_a_head_that_is_not_there_or_for_another_model_is_named(tmp_path):
    with pytest.raises(ModelLoadError, match=r"speculative_config: model: no/head: no such dir"):
        plan("Qwen3-8B", speculative_config={"method": "eagle3", "model": "no/head"})
    for model in ("Qwen3-8B", "bundled-experts"):
        with pytest.raises(ModelLoadError, match=r"model: 'bundled' is the head of the bundled"):
            plan(model, speculative_config=HEAD)
    plan(BUNDLED_MODEL, quantization="int8", speculative_config=HEAD)  # the same model
    shutil.copy(BUNDLED_DRAFT_HEADS["eagle3"] / "config.json", tmp_path)
    with pytest.raises(ModelLoadError, match="safetensors"):
        plan(BUNDLED_MODEL, speculative_config={"method": "eagle3", "model": str(tmp_path)})


def test_a_head_of_the_hubs_cache_is_read_at_its_revision(monkeypatch):
    asked = []

    def find(name, file, revision):
        asked.append((name, file, revision))
        return str(BUNDLED_DRAFT_HEADS["eagle3"] / file)

    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", find)
    drafts = {"method": "eagle3", "model": "someone/head", "revision": "v2"}
    planned = plan(BUNDLED_MODEL, dtype="bfloat16", speculative_config=drafts)
    expected = plan(BUNDLED_MODEL, dtype="bfloat16", speculative_config=HEAD)
    assert planned.memory == expected.memory
    assert asked == [("someone/head", "config.json", "v2")]


def test_more_drafts_than_a_head_makes_are_refused_as_by_an_engine():
    drafts = {"method": "dflash", "model": "bundled", "num_speculative_tokens": 8}
    with pytest.raises(ValueError, match="more than the head can draft; set it to at most 7"):
        plan(BUNDLED_MODEL, speculative_config=drafts)
