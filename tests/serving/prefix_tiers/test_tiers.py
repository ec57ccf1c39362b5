"""Answers are the same with and without tiers, and blocks do come back from host memory."""

import gc
import threading
import time
import types
import weakref

import jax
import numpy as np
import pytest

from jaxinfer import CapacityError, Capture
from jaxinfer.planning import blocks
from jaxinfer.serving.prefix_tiers.block_copies import CopyBack, TierCopies
from jaxinfer.serving.prefix_tiers.block_rows import MOST_BLOCKS, num_rows
from jaxinfer.serving.prefix_tiers.pinned_memory import check_pinned
from jaxinfer.serving.programs.kinds.block_rows import MOST_ARRAYS, BlockRowsKey
from jaxinfer.serving.programs.program_set import all_programs
from jaxinfer.serving.requests.request import RequestStatus
from jaxinfer.serving.scheduler.prefix_index import PrefixIndex
from jaxinfer.serving.scheduler.tiers.no_tiers import NoTiers
from jaxinfer.testing import tiny_params
from tests.serving.small_llm import (
    CONFIG,
    GREEDY,
    greedy_reference,
    ids,
    small_llm,
    small_params,
)

pytestmark = pytest.mark.usefixtures("always_fetching")

TIERS = {"kv_offloading_size": 0.01, "block_size": 8, "num_kv_blocks": 13}
"""A cache of two conversations, and host memory for all of them."""


def conversations(count=6, length=40, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(0, CONFIG.vocab_size, length).tolist() for _ in range(count)]


def ask(llm, prompts, params=GREEDY):
    """One after the other, so that each is evicted by those that follow."""
    return [llm.generate([prompt], params, use_tqdm=False)[0] for prompt in prompts]


def parts(llm):
    return llm._loaded.replicas[0]


def settle(llm):
    """Wait until all copies to host memory have arrived."""
    parts(llm).runner.transfers.settle()


@pytest.fixture(scope="module")
def llm():
    with small_llm(**TIERS) as llm:
        yield llm


def test_conversations_come_back_from_host_memory_with_the_same_answers(llm):
    prompts = conversations()
    first = ask(llm, prompts)
    settle(llm)
    before = llm._loaded.engine.counts().tiers
    again = ask(llm, prompts)
    assert ids(again) == ids(first) == [greedy_reference(prompt, 6) for prompt in prompts]
    assert [output.num_cached_tokens for output in first] == [0] * 6
    assert [output.num_cached_tokens for output in again] == [32] * 6
    after = llm._loaded.engine.counts().tiers
    assert after.hit_tokens - before.hit_tokens >= 5 * 32
    assert after.bytes_in > before.bytes_in
    assert after.held_blocks > 0
    parts(llm).scheduler.check_invariants()


def test_all_at_once_they_are_fetched_in_turn(llm):
    prompts = conversations(8, seed=1)
    first = ask(llm, prompts)
    settle(llm)
    again = llm.generate(prompts, GREEDY, use_tqdm=False)
    assert ids(again) == ids(first)
    assert sum(output.num_cached_tokens for output in again) >= 5 * 32
    parts(llm).scheduler.check_invariants()
    assert parts(llm).runner.transfers._num_staged == 0


def test_long_conversations_travel_in_few_arrays():
    sizes = {"num_kv_blocks": 31, "max_model_len": 240}  # blocks of one conversation
    with small_llm(**TIERS | sizes) as llm:
        prompts = conversations(2, 221, seed=16)
        first = ask(llm, prompts)
        again = []
        for prompt in prompts:
            settle(llm)  # the other one was evicted just now
            again += ask(llm, [prompt])
        assert ids(again) == ids(first)
        settle(llm)
        transfers = parts(llm).runner.transfers
        counts, blocks = transfers.snapshot(), transfers.tier._blocks.values()
        assert {len(block.rows) for block in blocks} == {1, 16}
        assert len(blocks) <= transfers.tier._rows.count == num_rows(blocks)
        assert counts.bytes_in >= 40 * transfers.block_bytes
        assert [each.num_cached_tokens for each in ask(llm, prompts[:1])] == [216]


def test_requests_that_share_a_beginning_get_their_own_ends(llm):
    prompt, *others = conversations(5, seed=2)
    forked = prompt[:32] + others[0][:20]
    first = ask(llm, [prompt, forked, *others])
    settle(llm)
    again = llm.generate([prompt, forked, prompt], GREEDY, use_tqdm=False)
    assert ids(again) == [ids(first)[i] for i in (0, 1, 0)]
    assert all(output.num_cached_tokens >= 32 for output in again)


def test_new_weights_find_nothing_old(llm):
    prompts = conversations(seed=3)
    old = ask(llm, prompts)
    settle(llm)
    llm.update_params(tiny_params(seed=5))
    new = ask(llm, prompts)
    assert [output.num_cached_tokens for output in new] == [0] * 6
    with small_llm(params=tiny_params(seed=5), show_progress=False) as plain:
        assert ids(new) == ids(ask(plain, prompts)) != ids(old)
    settle(llm)
    again = ask(llm, prompts)
    assert [output.num_cached_tokens for output in again] == [32] * 6
    assert ids(again) == ids(new)
    llm.update_params(small_params())


def test_a_reset_forgets_host_memory_too(llm):
    prompts = conversations(seed=4)
    ask(llm, prompts)
    settle(llm)
    llm.reset_prefix_cache()
    assert llm._loaded.engine.counts().tiers.held_blocks == 0
    assert [output.num_cached_tokens for output in ask(llm, prompts)] == [0] * 6


def test_salts_share_nothing(llm):
    prompts = conversations(3, seed=5)
    ask(llm, [{"prompt_token_ids": prompt, "cache_salt": "a"} for prompt in prompts])
    ask(llm, conversations(3, seed=6))
    settle(llm)
    other = ask(llm, [{"prompt_token_ids": prompt, "cache_salt": "b"} for prompt in prompts])
    assert [output.num_cached_tokens for output in other] == [0] * 3
    same = ask(llm, [{"prompt_token_ids": prompt, "cache_salt": "a"} for prompt in prompts])
    assert [output.num_cached_tokens for output in same] == [32] * 3


def test_an_engine_that_slept_computes_again(llm):
    prompts = conversations(3, seed=7)
    first = ask(llm, prompts)
    llm.sleep()
    llm.wake_up()
    again = ask(llm, prompts)
    assert ids(again) == ids(first)
    assert [output.num_cached_tokens for output in again] == [0] * 3


def test_aborts_while_blocks_come_leak_nothing(llm):
    prompts = conversations(6, seed=8)
    ask(llm, prompts)
    settle(llm)
    replica = parts(llm)
    transfers, bring = replica.runner.transfers, replica.runner.transfers._bring
    gate = threading.Event()
    transfers._bring = lambda fetch: (gate.wait(10), bring(fetch))
    outputs = []
    reader = threading.Thread(target=lambda: outputs.extend(llm.generate([prompts[0]], GREEDY)))
    reader.start()
    try:
        deadline = time.monotonic() + 20
        while not any(r.status is RequestStatus.FETCHING for r in replica.scheduler.unfinished()):
            assert time.monotonic() < deadline
            time.sleep(0.001)
        # Others are not held up.
        assert ids(ask(llm, [[1, 2, 3]])) == [greedy_reference([1, 2, 3], 6)]
        engine = replica.engine
        llm._handle.driver.call(lambda: [engine.abort(key) for key in engine._requests.ids])
        reader.join(20)
    finally:
        gate.set()
        transfers._bring = bring
    settle(llm)
    assert outputs[0].outputs[0].finish_reason == "abort"
    assert not replica.scheduler.has_unfinished
    assert transfers._num_staged == 0
    replica.scheduler.check_invariants()
    assert replica.scheduler.pool.num_free_blocks == replica.scheduler.pool.num_usable_blocks


def test_metrics_count_what_the_tiers_did(llm):
    prompts = conversations(6, seed=9)
    before = {(m.name, *m.labels.values()): m for m in llm.get_metrics()}
    ask(llm, prompts)
    settle(llm)
    ask(llm, prompts)
    after = {(m.name, *m.labels.values()): m for m in llm.get_metrics()}
    for key in (
        ("jaxinfer:external_prefix_cache_queries",),
        ("jaxinfer:external_prefix_cache_hits",),
        ("jaxinfer:prefix_tier_bytes", "host", "out"),
        ("jaxinfer:prefix_tier_bytes", "host", "in"),
    ):
        assert after[key].value > before[key].value
    assert after["jaxinfer:prefix_tier_blocks", "host"].value > 0


@pytest.mark.parametrize(
    "options",
    [
        {"tensor_parallel_size": 2},
        {"kv_cache_dtype": "int8"},
        {"kv_cache_dtype": "fp8_e4m3"},
        {"tensor_parallel_size": 2, "kv_cache_dtype": "int8"},
        {"preemption_mode": "swap", "swap_space": 0.001},
        {"enable_lora": True},
        {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2}},
        {"data_parallel_size": 2},
    ],
    ids=str,
)
def test_every_kind_of_engine_gets_its_blocks_back(options):
    prompts = conversations(5, seed=10)
    with small_llm(**TIERS | options) as llm:
        first = ask(llm, prompts * 2)
        for replica in llm._loaded.replicas:
            replica.runner.transfers.settle()
        again = ask(llm, prompts * 2)
        assert ids(again) == ids(first)
        assert llm._loaded.engine.counts().tiers.hit_tokens > 0
        assert sum(output.num_cached_tokens for output in again[5:]) >= 4 * 32
        for replica in llm._loaded.replicas:
            replica.scheduler.check_invariants()


def test_captured_activations_come_back_with_their_blocks():
    prompts = conversations(5, seed=12)
    with small_llm(**TIERS, capture=Capture()) as llm:
        turns = []
        for _ in range(2):
            turns.append([llm.generate([each], GREEDY, False, capture=True)[0] for each in prompts])
            settle(llm)
        for first, again in zip(*turns, strict=True):
            assert (first.num_cached_tokens, again.num_cached_tokens) == (0, 32)
            kept = [output.outputs[0].captured for output in (first, again)]
            for layer, values in kept[0].items():
                np.testing.assert_allclose(kept[1][layer], values, atol=1e-5)


@pytest.mark.parametrize("count", [1, 5, 12, 60])
def test_blocks_travel_bit_by_bit(count):
    """By launches of one array and of several, of one block each and of several."""
    with small_llm(**TIERS | {"num_kv_blocks": 1 + count}, max_model_len=8) as llm:
        runner = parts(llm).runner
        kv = runner.resident.kv
        noise = iter(jax.random.split(jax.random.key(0), len(jax.tree.leaves(kv))))
        kv = jax.tree.map(lambda leaf: jax.random.normal(next(noise), leaf.shape, leaf.dtype), kv)
        runner.launcher.resident = runner.resident._replace(kv=kv)
        pages = [np.array(leaf) for leaf in jax.tree.leaves(runner.resident.kv)]
        copies, transfers = runner.launcher.block_rows, runner.transfers
        keys = [bytes([i]) for i in range(count)]
        assert all(map(transfers.expect, keys))
        out = TierCopies([(1 + i, key) for i, key in enumerate(keys)], [])
        copies.copy_out(runner.resident.kv, out, transfers)
        settle(llm)
        fetch = transfers.fetch(keys)
        while not fetch.is_done:
            transfers.wait(0.01)
        blocks = [count - i for i in range(count)]  # in reverse
        back = TierCopies([], [CopyBack(fetch, list(fetch.rows), blocks)])
        arrays = [weakref.ref(block.rows) for block in fetch.rows]
        kv = copies.copy_back(runner.resident.kv, back, transfers)
        assert transfers._num_staged == transfers._num_outgoing == 0
        gc.collect()
        assert {each() for each in arrays} == {None}, "the arrays went"
        runner.launcher.resident = runner.resident._replace(kv=kv)
        for leaf, old in zip(jax.tree.leaves(kv), pages, strict=True):
            np.testing.assert_array_equal(np.asarray(leaf)[blocks], old[1:])


def test_there_is_room_for_the_padding_of_a_launch():
    assert blocks.PADDING == MOST_ARRAYS // 2 * MOST_BLOCKS
    assert blocks.blocks_beside_pages(4096, 16) == 3 * 256 + blocks.PADDING


def test_an_engine_without_tiers_has_none():
    with small_llm() as llm:
        replica = parts(llm)
        assert replica.runner.transfers is None
        assert type(replica.scheduler.tiers) is NoTiers
        assert type(replica.scheduler.pool.index) is PrefixIndex
        keys = all_programs(replica.runner._buckets, swaps=False)
        assert not any(isinstance(key, BlockRowsKey) for key in keys)
        assert not any("tier" in metric.name for metric in llm.get_metrics())


def test_more_than_the_host_has_is_refused_with_both_numbers(monkeypatch):
    memory = types.SimpleNamespace(available=100 * 2**20)
    monkeypatch.setattr("psutil.virtual_memory", lambda: memory)
    message = r"^kv_offloading_size takes 0\.12 GiB .* 0\.10 GiB are available; lower kv_offloading"
    with pytest.raises(CapacityError, match=message):
        small_llm(**TIERS | {"kv_offloading_size": 0.125})


@pytest.mark.parametrize("given", [None, "100"])
def test_more_than_xla_pins_is_refused_on_gpus(monkeypatch, given):
    if given is not None:
        monkeypatch.setenv("XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB", given)
    most = float(given or 64)
    check_pinned("kv_offloading_size", int((most - 4) * 2**30))
    with pytest.raises(
        CapacityError, match=rf"XLA pins {most:g} GiB .* lower kv_off.*, or set XLA_"
    ):
        check_pinned("kv_offloading_size", int((most - 3) * 2**30))


def test_a_lack_of_memory_on_the_devices_loses_no_block(monkeypatch):
    with small_llm(**TIERS) as llm:
        transfers = parts(llm).runner.transfers
        ask(llm, conversations(2, seed=12))
        keys = [bytes([i]) for i in range(4)]
        assert all(map(transfers.expect, keys))
        copies = parts(llm).runner.launcher.block_rows
        pairs = [(1 + i, key) for i, key in enumerate(keys)]
        copies.copy_out(parts(llm).runner.resident.kv, TierCopies(pairs, []), transfers)
        settle(llm)

        def fail(*_: object) -> None:
            raise RuntimeError("RESOURCE_EXHAUSTED")

        with monkeypatch.context() as patch:
            patch.setattr("jax.device_put", fail)
            fetch = transfers.fetch(keys)
            while not fetch.is_done:
                transfers.wait(0.01)
        assert not fetch.rows
        transfers.release(fetch)
        assert all(map(transfers.holds, keys))


def test_copies_out_begin_before_the_step_behind_them_is_launched(monkeypatch):
    begun = []
    with small_llm(**TIERS) as llm:
        on_host, put = parts(llm).runner.transfers._on_host, jax.device_put

        def device_put(value, device=None, **given):
            if device == on_host:
                begun.append(threading.current_thread().name)
            return put(value, device, **given)

        monkeypatch.setattr(jax, "device_put", device_put)
        ask(llm, conversations(3, seed=20))
        settle(llm)
    assert begun
    assert not any("tiers" in name for name in begun)


def test_what_is_given_up_while_it_comes_leaves_its_room_when_it_has_come(monkeypatch):
    with small_llm(**TIERS) as llm:
        transfers, prompts = parts(llm).runner.transfers, conversations(3, seed=21)
        ask(llm, prompts)
        settle(llm)
        keys, may_arrive = list(transfers.tier._blocks)[:2], threading.Event()
        monkeypatch.setattr(transfers, "_await", lambda rows: may_arrive.wait(5))
        fetch = transfers.fetch(keys)
        while not fetch.is_coming:
            transfers.wait(0.1)
        assert len(fetch.rows) == 2
        assert not fetch.is_done
        transfers.release(fetch)
        assert transfers._num_staged == fetch.num_staged > 0
        may_arrive.set()
        settle(llm)
        assert transfers._num_staged == 0
        assert not fetch.rows


def test_a_block_that_was_forgotten_and_came_anew_is_the_new_one():
    with small_llm(**TIERS) as llm:
        ask(llm, conversations(2, seed=13))  # so that blocks differ
        transfers, kv = parts(llm).runner.transfers, parts(llm).runner.resident.kv
        copies, key, held = parts(llm).runner.launcher.block_rows, b"key", threading.Event()
        (rows,) = copies.rows(kv, [[1, 2]], BlockRowsKey(1, 16, out=True))
        rows = np.asarray(rows)[:2]
        assert not np.array_equal(*rows)
        transfers._outward.submit(held.wait)  # both copies wait behind it
        for block in (1, 2):
            transfers.forget([key])
            assert transfers.expect(key)
            copies.copy_out(kv, TierCopies([(block, key)], []), transfers)
        kept = []
        transfers.tier.put = lambda key, block: kept.append(np.asarray(block.rows)[block.place])
        held.set()
        settle(llm)
        np.testing.assert_array_equal(kept, rows[1:])


def copy_out_key(llm):
    """Has a tier take a block, under the key b"key"."""
    runner = parts(llm).runner
    assert runner.transfers.expect(b"key")
    out = TierCopies([(1, b"key")], [])
    runner.launcher.block_rows.copy_out(runner.resident.kv, out, runner.transfers)
    settle(llm)


@pytest.mark.parametrize("again", [False, True])
def test_a_block_that_is_forgotten_while_the_tier_takes_it_is_not_kept(again, monkeypatch):
    with small_llm(**TIERS) as llm:
        ask(llm, conversations(1, seed=14))
        transfers = parts(llm).runner.transfers
        tier, put = transfers.tier, transfers.tier.put
        stored = []
        monkeypatch.setattr(transfers, "on_stored", stored.extend)

        def slow_put(key, block):
            transfers.forget([key])
            if again:
                assert transfers.expect(key)  # a new one, whose copy is still to come
            put(key, block)

        monkeypatch.setattr(tier, "put", slow_put)
        copy_out_key(llm)
        assert b"key" not in transfers
        assert transfers.is_leaving(b"key") == again
        assert stored == [b"key"]


def test_a_block_that_is_cleared_while_the_tier_takes_it_keeps_its_file(monkeypatch):
    """A file is of an earlier computation of the same tokens."""
    with small_llm(**TIERS) as llm:
        ask(llm, conversations(1, seed=15))
        transfers = parts(llm).runner.transfers
        tier, put = transfers.tier, transfers.tier.put
        forgotten = []
        monkeypatch.setattr(tier, "forget", forgotten.extend)

        def slow_put(key, block):
            transfers.clear()
            put(key, block)

        monkeypatch.setattr(tier, "put", slow_put)
        copy_out_key(llm)
        assert b"key" not in transfers
        assert not forgotten


def test_a_tier_that_fails_is_told_of_and_leaves_nothing_on_its_way(monkeypatch, caplog):
    def fail(*_: object) -> None:
        raise RuntimeError("no memory")

    with small_llm(**TIERS) as llm:
        ask(llm, conversations(1, seed=15))
        transfers, kv = parts(llm).runner.transfers, parts(llm).runner.resident.kv
        monkeypatch.setattr(transfers.tier, "put", fail)
        assert all(map(transfers.expect, (b"1", b"2")))
        out = TierCopies([(1, b"1"), (2, b"2")], [])
        parts(llm).runner.launcher.block_rows.copy_out(kv, out, transfers)
        settle(llm)
        assert transfers.num_leaving == 0
        assert not transfers.is_leaving(b"1")
        assert not transfers.is_leaving(b"2")
    assert set(caplog.messages) == {"KV blocks were not kept: no memory"}


def test_less_than_a_block_is_refused():
    with pytest.raises(CapacityError, match="holds no KV block"):
        small_llm(**TIERS | {"kv_offloading_size": 1e-6})


def test_tiers_need_the_prefix_cache():
    with pytest.raises(ValueError, match="set enable_prefix_caching"):
        small_llm(**TIERS, enable_prefix_caching=False)
