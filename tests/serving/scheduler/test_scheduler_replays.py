"""Replays of situations that broke other engines: tiny caches, block edges, identical prompts."""

import pytest

from jaxinfer.sampling_params import SamplingParams
from jaxinfer.serving.requests.request import RequestStatus
from jaxinfer.serving.scheduler.block_pool import BlockPool
from jaxinfer.serving.scheduler.scheduler import Scheduler
from tests.serving.requests.host_request import host_request
from tests.serving.runner.fake_device import FakeDevice, run_to_end, solo_run

NO_EOS = frozenset([-1])


def make_scheduler(num_blocks, block_size, **kwargs):
    defaults = {"max_num_seqs": 16, "max_num_batched_tokens": 8192, "max_model_len": 4096}
    scheduler = Scheduler(BlockPool(num_blocks, block_size), **(defaults | kwargs))
    return scheduler, FakeDevice(scheduler)


def make_request(request_id, length, max_tokens, first=0, **kwargs):
    prompt = [(first + i * 7) % 23 for i in range(length)]
    return host_request(str(request_id), prompt, SamplingParams(max_tokens=max_tokens), **kwargs)


def assert_solo(requests, max_model_len=4096):
    for request in requests:
        outputs, reason, _ = solo_run(request, NO_EOS, max_model_len)
        assert request.output_token_ids == outputs
        assert request.finish_reason == reason


def test_identical_512_token_prompts_with_block_256_arriving_together():
    scheduler, device = make_scheduler(40, 256)
    requests = [make_request(i, 512, 3) for i in range(12)]
    for request in requests:
        scheduler.add(request)
    schedules = run_to_end(scheduler, device)
    # The last token must be computed, but once for all: the others fork its row.
    assert [r.history.num_prefix_cached_tokens for r in requests] == [0] + [512] * 11
    assert schedules[0].num_tokens == 512
    assert_solo(requests)


def test_identical_512_token_prompts_with_block_256_513_times_in_a_row():
    scheduler, device = make_scheduler(4, 256)
    expected = solo_run(make_request(0, 512, 2), NO_EOS, 4096)[0]
    for i in range(513):
        request = make_request(i, 512, 2)
        scheduler.add(request)
        for _ in range(2):
            schedule = scheduler.schedule()
            scheduler.update(schedule, device.launch(schedule))
        assert request.output_token_ids == expected
        assert request.history.num_prefix_cached_tokens == (256 if i else 0)
    scheduler.check_invariants()
    assert scheduler.pool.num_free_blocks == 3


@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_two_block_cache(mode):
    # Two blocks beside the reserved one.
    scheduler, device = make_scheduler(
        3, 8, max_model_len=17, preemption_mode=mode, num_host_blocks=2 * (mode == "swap")
    )
    requests = [make_request(i, 1 + 3 * i, None, first=i % 2) for i in range(6)]
    for request in requests:
        scheduler.add(request)
    run_to_end(scheduler, device)
    assert_solo(requests, 17)


def test_4096_token_prompt_with_max_model_len_4096():
    scheduler, device = make_scheduler(257, 16, max_num_batched_tokens=1000)
    with pytest.raises(ValueError, match=r"4096 tokens .*max_model_len is 4096"):
        scheduler.add(make_request("too long", 4096, 1))
    longest = make_request("longest", 4095, None)
    scored = make_request("scored", 4096, 1, first=3, prefill_only=True)
    scheduler.add(longest)
    scheduler.add(scored)
    schedules = run_to_end(scheduler, device)
    assert len(longest.output_token_ids) == 1
    assert longest.finish_reason == scored.finish_reason == "length"
    assert len(schedules) == 10
    assert_solo([longest, scored])


@pytest.mark.parametrize("num_outputs", [1, 2, 8, 9, 10])
@pytest.mark.parametrize("prompt_length", [7, 8, 9])
def test_preemption_around_a_block_edge_resumes_through_its_own_cached_blocks(
    prompt_length, num_outputs
):
    scheduler, device = make_scheduler(20, 8)
    request = make_request(0, prompt_length, num_outputs + 12)
    scheduler.add(request)
    for _ in range(num_outputs):
        schedule = scheduler.schedule()
        scheduler.update(schedule, device.launch(schedule))
    num_cached, num_tokens = request.num_cached_tokens, request.num_tokens
    assert scheduler.preempt() == [request]
    scheduler.check_invariants()
    assert request.blocks.table == []
    schedule = scheduler.schedule()
    (row,) = schedule.rows
    # Every full block of computed tokens is found again; at least one token is computed.
    assert row.start == min(num_cached // 8, (num_tokens - 1) // 8) * 8
    assert row.start + row.num_fed == num_tokens
    assert not schedule.is_decode
    scheduler.update(schedule, device.launch(schedule))
    run_to_end(scheduler, device)
    assert_solo([request])


@pytest.mark.parametrize("max_num_seqs", [1, 3, 12, 100])
@pytest.mark.parametrize("depth", [0, 1])
def test_any_cap_on_the_running_set_gives_the_same_tokens(max_num_seqs, depth):
    scheduler, device = make_scheduler(
        30, 8, max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_seqs + 20
    )
    requests = [make_request(i, 3 + i % 14, 1 + i % 9, first=i % 5) for i in range(24)]
    for request in requests:
        scheduler.add(request)
    schedules = run_to_end(scheduler, device, depth=depth)
    assert max(len(schedule.rows) for schedule in schedules) <= max_num_seqs
    assert_solo(requests)


@pytest.mark.parametrize("num_host_blocks", [0, 5, 100])
@pytest.mark.parametrize("period", [1, 2, 5])
def test_everything_force_preempted_in_mid_flight(num_host_blocks, period):
    scheduler, device = make_scheduler(
        60,
        8,
        max_num_seqs=4,
        max_num_batched_tokens=24,
        preemption_mode="swap" if num_host_blocks else "recompute",
        num_host_blocks=num_host_blocks,
    )
    requests = [make_request(i, 5 + 6 * i, 8, first=i) for i in range(6)]
    for request in requests:
        scheduler.add(request)
    in_flight = []
    for i in range(2000):
        if not scheduler.has_unfinished:
            break
        schedule = scheduler.schedule()
        if schedule is not None:
            in_flight.append((schedule, device.launch(schedule)))
        # A prompt of several chunks would never end if it lost all of them each time.
        if i % (period + 3) < period:
            scheduler.preempt()
            device.note_waiting()
            assert all(r.status is not RequestStatus.RUNNING for r in requests)
            scheduler.check_invariants()
        if schedule is None or len(in_flight) > 1:
            scheduler.update(*in_flight.pop(0))
        scheduler.check_invariants()
    assert_solo(requests)
    assert scheduler.num_preemptions > 6
