"""Host memory for swapped blocks is there from the start, or refused."""

import ctypes
import gc
import mmap
import re
import types
import weakref
from typing import Any

import jax
import numpy as np
import pytest

from jaxinfer import SamplingParams
from jaxinfer.config import EngineConfig
from jaxinfer.errors import CapacityError
from jaxinfer.serving.prefix_tiers.block_rows import MOST_BLOCKS
from jaxinfer.serving.prefix_tiers.pinned_memory import check_memory
from jaxinfer.serving.programs.kinds.block_rows import BlockRowsKey
from jaxinfer.serving.programs.program_set import all_programs
from jaxinfer.serving.runner.swap import HostBlocks
from jaxinfer.serving.startup.tiers import check_size
from tests.serving.runner.tiny_runner import Loop, make_runner, prompts
from tests.serving.small_llm import held_blocks, ids, small_llm

MIB = 2**20
_GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)


def test_swap_space_takes_its_memory_at_the_start():
    runner = make_runner()
    try:
        blocks = HostBlocks(runner.programs, 256 * MIB / 2**30)
        resident = [_resident_share(array) for array in blocks._arrays]
        places = {array.unsafe_buffer_pointer() for array in blocks._arrays}
    finally:
        runner.close()
    size = sum(array.nbytes for array in blocks._arrays)
    assert {array.sharding.memory_kind for array in blocks._arrays} == {"pinned_host"}
    assert blocks.num_blocks == MOST_BLOCKS * len(blocks._arrays)
    # One more array is for what is on its way.
    assert 250 * MIB < size <= 256 * MIB - blocks._arrays[0].nbytes
    assert len(places) == len(blocks._arrays)
    assert np.mean(resident) > 0.99


def _resident_share(array: jax.Array) -> float:
    """The share of an array's whole pages that are in memory; those never written are not."""
    begin = -(-array.unsafe_buffer_pointer() // mmap.PAGESIZE) * mmap.PAGESIZE
    end = array.unsafe_buffer_pointer() + array.nbytes
    count = (end - begin) // mmap.PAGESIZE
    vector = (ctypes.c_ubyte * count)()
    library = ctypes.CDLL(None, use_errno=True)
    address, size = ctypes.c_void_p(begin), ctypes.c_size_t(count * mmap.PAGESIZE)
    assert library.mincore(address, size, vector) == 0, ctypes.get_errno()
    return float(np.mean([each & 1 for each in vector]))


def test_more_swap_space_than_the_host_has_is_refused_with_both_numbers(monkeypatch):
    few = types.SimpleNamespace(available=100 * MIB)
    monkeypatch.setattr("psutil.virtual_memory", lambda: few)
    message = r"^swap_space takes 0\.12 GiB .* 0\.10 GiB are available; lower swap_space$"
    with pytest.raises(CapacityError, match=message):
        make_runner(swap_space=0.125, preemption_mode="swap", num_kv_blocks=9)
    # Where preemption recomputes, no host memory is taken and none is checked.
    make_runner(swap_space=0.125, num_kv_blocks=9).close()


def test_more_swap_space_than_xla_pins_is_refused_on_gpus(monkeypatch):
    monkeypatch.setattr(
        "psutil.virtual_memory", lambda: types.SimpleNamespace(available=1000 * 2**30)
    )
    check_memory("swap_space", 61 * 2**30, "cpu")
    with pytest.raises(CapacityError, match=r"^swap_space takes 61.* XLA pins 64 .* or set XLA_"):
        check_memory("swap_space", 61 * 2**30, "gpu")


def test_swap_space_for_no_block_is_refused_with_the_least():
    with pytest.raises(CapacityError, match=r"^swap_space=1e-05 GiB holds no KV block.* give 0\."):
        make_runner(preemption_mode="swap", swap_space=1e-5, num_kv_blocks=9)


def test_what_tiers_and_swapping_pin_is_limited_together(monkeypatch):
    monkeypatch.setattr(
        "psutil.virtual_memory", lambda: types.SimpleNamespace(available=1000 * 2**30)
    )
    row, both = jax.ShapeDtypeStruct((1, 1024), "int32"), {"kv_offloading_size": 40.0}
    check_size(row, EngineConfig(**both), "gpu")
    both |= {"swap_space": 40.0, "preemption_mode": "swap"}
    with pytest.raises(CapacityError, match=r"takes 8\d\.\d+ GiB of pinned memory .* swap_space"):
        check_size(row, EngineConfig(**both), "gpu")


def test_memory_that_the_host_does_not_pin_is_refused_by_name(monkeypatch):
    def fail(*_: object) -> None:
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED")

    runner = make_runner(num_kv_blocks=9)
    monkeypatch.setattr("jax.device_put", fail)
    with pytest.raises(CapacityError, match=r"^the host does not pin the 0\.01 GiB of swap_space"):
        HostBlocks(runner.programs, 0.01)
    monkeypatch.undo()
    runner.close()


def test_swapping_has_the_programs_of_tiers_for_one_array():
    with small_llm(preemption_mode="swap", swap_space=0.01) as swaps:
        plain = swaps._loaded.replicas[0].runner._buckets
    with small_llm(kv_offloading_size=0.01, enable_prefix_caching=True) as tiers:
        tiered = tiers._loaded.replicas[0].runner._buckets
    keys = {BlockRowsKey(1, MOST_BLOCKS, out) for out in (True, False)}
    assert {*all_programs(plain, swaps=True)} - {*all_programs(plain, swaps=False)} == keys
    assert keys < {*all_programs(tiered, swaps=True)} == {*all_programs(tiered, swaps=False)}


def test_at_most_two_arrays_that_leave_lie_beside_the_pages():
    runner = make_runner(preemption_mode="swap", swap_space=0.02, num_kv_blocks=90)
    blocks, waits = runner.launcher._host_blocks, []

    class Leaving:
        def __init__(self, copy: jax.Array) -> None:
            self.copy = copy

        def block_until_ready(self) -> None:
            waits.append(sum(isinstance(each, Leaving) for each in blocks._arrays))

    put = jax.device_put
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jax.device_put", lambda *arguments: Leaving(put(*arguments)))
        out = [(1 + host, host) for host in range(4 * MOST_BLOCKS + 3)]
        blocks.swap(runner.resident.kv, out, [], runner.launcher.block_rows)
    assert waits == [1, 2, 3, 4]  # for each but the last, before the one after the next
    runner.close()


def test_requests_that_leave_one_after_the_other_keep_what_is_theirs():
    given = prompts(np.random.default_rng(0), (14, 12, 10, 8))
    with small_llm() as plain:
        expected = ids(plain.generate(given, _GREEDY, use_tqdm=False))
    with small_llm(preemption_mode="swap", swap_space=0.01) as llm, held_blocks(llm, 5):
        blocks, held, most = llm._loaded.replicas[0].runner.launcher._host_blocks, set(), []
        swap = blocks.swap

        def note(kv: Any, out: Any, back: Any, copies: Any) -> Any:
            held.update(host // MOST_BLOCKS for _, host in out)
            most.append(len(held))
            held.difference_update(host // MOST_BLOCKS for _, host in back)
            return swap(kv, out, back, copies)

        blocks.swap = note
        assert ids(llm.generate(given, _GREEDY, use_tqdm=False)) == expected
    assert {1, 2} <= {*most}


@pytest.mark.parametrize("direction", ["out", "in"])
def test_a_copy_that_fails_costs_computing_again(direction):
    given = prompts(np.random.default_rng(0), (20, 33, 7, 28))
    with small_llm() as plain:
        expected = ids(plain.generate(given, _GREEDY, use_tqdm=False))
    failed, put = [], jax.device_put

    def fail_once(arrays: Any, to: jax.sharding.Sharding) -> Any:
        if not failed and (to.memory_kind == "pinned_host") == (direction == "out"):
            failed.append(to)
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED")
        return put(arrays, to)

    with small_llm(preemption_mode="swap", swap_space=0.01) as llm:
        with held_blocks(llm, 5), pytest.MonkeyPatch.context() as patch:
            patch.setattr("jax.device_put", fail_once)
            assert ids(llm.generate(given, _GREEDY, use_tqdm=False)) == expected
        assert failed
        scheduler = llm._loaded.replicas[0].scheduler
        assert scheduler.swap_space.num_free_blocks == scheduler.swap_space.num_blocks
        scheduler.check_invariants()


def test_blocks_on_their_way_to_host_memory_do_not_outlive_the_engine():
    runner = make_runner(preemption_mode="swap", swap_space=0.01)
    loop = Loop(runner)
    for prompt in prompts(np.random.default_rng(0), (20, 33, 7)):
        loop.add(prompt)
    for _ in range(3):
        loop.step()
    loop.scheduler.preempt(2)
    loop.step()
    space = loop.scheduler.swap_space
    assert space.num_free_blocks < space.num_blocks
    arrays = [weakref.ref(array) for array in runner.launcher._host_blocks._arrays]
    runner.close()
    gc.collect()
    assert {array() for array in arrays} == {None}


def test_copies_in_both_directions_have_run_before_the_first_request(monkeypatch):
    """With several processes, the first one of each compiles a program."""
    runner, kinds, put = make_runner(), [], jax.device_put

    def note(arrays: Any, to: jax.sharding.Sharding) -> Any:
        kinds.extend([to.memory_kind] * len(jax.tree.leaves(arrays)))
        return put(arrays, to)

    with monkeypatch.context() as patch:
        patch.setattr("jax.device_put", note)
        blocks = HostBlocks(runner.programs, 0.01)
    assert kinds == ["pinned_host"] * (len(blocks._arrays) + 1) + ["device"]
    runner.close()


def test_swap_space_that_nothing_uses_is_said_in_one_line(capfd):
    small_llm(swap_space=4, show_progress=True).close()
    line = 'swap_space does nothing: .*; write preemption_mode="swap" .*'
    assert len(re.findall(f"^{line}$", capfd.readouterr().err, re.MULTILINE)) == 1
    small_llm(swap_space=0.001, preemption_mode="swap", show_progress=True).close()
    assert "does nothing" not in capfd.readouterr().err
