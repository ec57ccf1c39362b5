"""Plans of replicas: each computes its share of a batch, or prompts alone."""

import json

import pytest

from jaxinfer.planning import plan
from jaxinfer.planning.replicas import Replicas

APART = {"data_parallel_size": 3, "prefill_replicas": 1, "kv_offloading_size": 16}


@pytest.fixture(scope="module")
def one():
    return plan("Qwen3-8B", batches=[16, 32, 64])


@pytest.mark.parametrize("count", [2, 3, 4])
def test_each_has_its_share_of_a_batch_and_a_cache_of_its_own(one, count):
    rows = [16 * count, 32 * count, 64 * count]
    several = plan("Qwen3-8B", batches=rows, data_parallel_size=count)
    assert several.memory == one.memory
    assert several.sequences(2048) == count * one.sequences(2048)
    for alone, all_of_them in zip(one.batches, several.batches, strict=True):
        assert (all_of_them.ttft, all_of_them.tpot) == (alone.ttft, alone.tpot)
        assert all_of_them.tokens_per_s == pytest.approx(count * alone.tokens_per_s)
        assert several.longest(all_of_them.sequences) == one.longest(alone.sequences)
    assert any(f"Each of {count} replicas" in note for note in several.notes)
    values = json.loads(json.dumps(several.to_dict()))
    assert values["replicas"] == {"count": count, "num_prefill": 0}
    assert values["memory"]["sequences"] == several.sequences(2048)


def test_prefill_and_decode_apart(one):
    apart = plan("Qwen3-8B", batches=[32, 64], **APART)
    alone = plan("Qwen3-8B", batches=[16, 32, 64], kv_offloading_size=16)
    assert apart.memory == alone.memory
    assert apart.sequences(2048) == 2 * alone.sequences(2048)
    # All prompts are computed by one, and half of the sequences are decoded by each of two.
    assert [batch.ttft for batch in apart.batches] == [batch.ttft for batch in alone.batches[1:]]
    assert [batch.tpot for batch in apart.batches] == [batch.tpot for batch in alone.batches[:2]]
    assert any("computed by 1 of them alone" in note for note in apart.notes)
    assert not any("replicas" in note for note in one.notes)


def test_the_fullest_replica_counts():
    assert [Replicas(3, 0).rows(n) for n in (1, 3, 4)] == [1, 1, 2]
    assert [Replicas(5, 2).rows(n) for n in (1, 3, 4)] == [1, 1, 2]
    assert [Replicas(5, 2).prompts(n) for n in (1, 2, 3)] == [1, 1, 2]


def test_slots_are_of_the_sequences_of_one():
    assert plan("Qwen3-8B", batches=[512], context=64, data_parallel_size=2).fits
    with pytest.raises(ValueError, match=r"a batch of 514 .* the most that a replica runs at once"):
        plan("Qwen3-8B", batches=[514], data_parallel_size=2, max_num_seqs=256)


def test_remedies_are_of_all_replicas():
    tight = plan("Qwen3-8B", context=40_000, batches=[64], data_parallel_size=2)
    assert not tight.fits
    most = tight.sequences(40_000)
    assert f"at most {most} sequences at once (--batch {most})" in tight.remedies
    assert plan("Qwen3-8B", context=40_000, batches=[most], data_parallel_size=2).fits
    longest = tight.longest(64)
    assert plan("Qwen3-8B", context=longest, batches=[64], data_parallel_size=2).fits


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"prefill_replicas": 1}, "must be fewer than data_parallel_size"),
        ({"data_parallel_size": 2, "prefill_replicas": 1}, "set kv_offloading_size"),
        ({"data_parallel_size": 2, "context_parallel_size": 2}, "exclude each other"),
        ({"data_parallel_size": 2, "pipeline_parallel_size": 2}, "exclude each other"),
    ],
)
def test_what_an_engine_refuses_is_refused(arguments, named):
    with pytest.raises(ValueError, match=named):
        plan("Qwen3-8B", **arguments)
