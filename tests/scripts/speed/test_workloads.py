"""The workloads have the lengths that the peers' figures were measured with."""

import pytest

from scripts.speed.workloads import WORKLOAD_NAMES, make_workload


def test_w1_has_nano_vllms_token_counts():
    workload = make_workload("W1", 0, vocab_size=151_936)
    assert len(workload.prompts) == 256
    assert workload.num_prompt_tokens == 142_827
    assert workload.num_output_tokens == 133_966


@pytest.mark.parametrize("name", WORKLOAD_NAMES)
def test_repeats_redraw_the_ids_and_keep_the_lengths(name):
    first, again, other = (make_workload(name, repeat, vocab_size=500) for repeat in (0, 0, 1))
    assert first == again
    assert first.prompts != other.prompts
    assert [len(prompt) for prompt in first.prompts] == [len(prompt) for prompt in other.prompts]
    assert max(max(prompt) for prompt in first.prompts) < 500


def test_no_two_workloads_begin_alike():
    starts = [
        tuple(prompt[:16])
        for name in WORKLOAD_NAMES
        for repeat in (0, 1)
        for prompt in make_workload(name, repeat, vocab_size=10_000).prompts
        if name != "W4"
    ]
    assert len(set(starts)) == len(starts)
    shared = {tuple(make_workload("W4", i, vocab_size=10_000).prompts[0][:16]) for i in (0, 1)}
    assert len(shared - set(starts)) == 2


@pytest.mark.parametrize("name", WORKLOAD_NAMES)
def test_only_what_a_workload_shares_may_come_from_the_cache(name):
    cold, warm = (make_workload(name, 0, vocab_size=99, warm=warm) for warm in (False, True))
    one, all_ = (63 * 2048, 64 * 2048) if name == "W4" else (0, 0)
    assert [*cold.cached_tokens()] == [one]
    assert [*warm.cached_tokens()] == [all_]
    assert [*cold.cached_tokens(prefix_caching=False)] == [0]


def test_each_replica_may_compute_the_shared_tokens_once():
    cold, warm = (make_workload("W4", 0, vocab_size=99, warm=warm) for warm in (False, True))
    assert [*cold.cached_tokens(num_replicas=3)] == [61 * 2048, 62 * 2048, 63 * 2048]
    assert [*warm.cached_tokens(num_replicas=2)] == [63 * 2048, 64 * 2048]


def test_warm_w4_keeps_the_shared_tokens_and_redraws_each_prompts_own():
    cold = make_workload("W4", 3, vocab_size=10_000)
    warm = make_workload("W4", 3, vocab_size=10_000, warm=True)
    shared = cold.shared_tokens
    assert {tuple(prompt[:shared]) for prompt in cold.prompts + warm.prompts} == {
        tuple(cold.prompts[0][:shared])
    }
    owns = [tuple(prompt[shared:]) for prompt in cold.prompts + warm.prompts]
    assert len(set(owns)) == 128


def test_w1_mixed_is_w1_with_sixteen_demanding_requests():
    plain, mixed = (make_workload(name, 0, vocab_size=10_000) for name in ("W1", "W1-mixed"))
    assert mixed.max_tokens == plain.max_tokens
    assert list(map(len, mixed.prompts)) == list(map(len, plain.prompts))
    assert sum(map(mixed.is_demanding, range(256))) == 16
    assert not any(map(plain.is_demanding, range(256)))


def test_groups_count_every_sample():
    workload = make_workload("W5", 0, vocab_size=100)
    assert workload.num_sequences == 32 * 16
    assert workload.num_output_tokens == 32 * 16 * 512
    assert workload.max_model_len == 1536


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(ValueError, match="no workload 'W9'; there are W1, W1-mixed, W2"):
        make_workload("W9", 0, vocab_size=100)
