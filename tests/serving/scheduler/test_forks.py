"""Further samples of a prompt feed nothing of it, and each goes on with blocks of its own."""

import pytest

from jaxinfer.sampling_params import SamplingParams
from tests.serving.requests.host_request import host_request
from tests.serving.runner.fake_device import read, run_to_end
from tests.serving.scheduler.scheduling import (
    add,
    assert_solo,
    make_request,
    make_scheduler,
    shape,
    step,
)


def samples(count, length, max_tokens=4, **kwargs):
    return [make_request(i, length, max_tokens, **kwargs) for i in range(count)]


def num_forks(schedules):
    return sum(row.num_fed == 0 for schedule in schedules for row in schedule.rows)


@pytest.mark.parametrize("length", [1, 7, 8, 20, 24])
def test_samples_that_arrive_together_feed_their_prompt_once(length):
    scheduler, device = make_scheduler()
    requests = add(scheduler, *samples(4, length))
    schedule = step(scheduler, device)
    assert shape(schedule) == [("0", 0, length), *((str(i), length, 0) for i in (1, 2, 3))]
    assert schedule.num_tokens == length
    assert not schedule.is_decode
    assert [len(request.output_token_ids) for request in requests] == [1] * 4
    assert [r.history.num_prefix_cached_tokens for r in requests] == [0, *[length] * 3]
    run_to_end(scheduler, device)
    assert_solo(*requests)


def test_full_blocks_are_held_together_and_a_part_of_one_is_copied():
    scheduler, device = make_scheduler()
    leader, *forks = add(scheduler, *samples(4, 20))
    schedule = step(scheduler, device)
    assert {tuple(fork.blocks.table[:2]) for fork in forks} == {tuple(leader.blocks.table[:2])}
    last = leader.blocks.table[2]
    assert schedule.block_copies == [(last, fork.blocks.table[2]) for fork in forks]
    assert len({last, *(fork.blocks.table[2] for fork in forks)}) == 4
    assert scheduler.pool.num_free_blocks == scheduler.pool.num_usable_blocks - 2 - 4


def test_nothing_is_copied_of_a_prompt_that_ends_with_a_block():
    scheduler, device = make_scheduler()
    add(scheduler, *samples(4, 24))
    assert step(scheduler, device).block_copies == []
    assert scheduler.pool.num_free_blocks == scheduler.pool.num_usable_blocks - 3


def test_forks_need_none_of_the_steps_tokens():
    scheduler, device = make_scheduler(max_num_batched_tokens=20)
    requests = add(scheduler, *samples(8, 20))
    assert len(step(scheduler, device).rows) == 8
    run_to_end(scheduler, device)
    assert_solo(*requests)


def test_groups_in_one_step_fork_their_own_prompts():
    scheduler, device = make_scheduler()
    requests = [make_request(i, 20, first=1 + i // 3) for i in range(8)]
    add(scheduler, *requests)
    schedule = step(scheduler, device)
    assert [row.num_fed for row in schedule.rows] == [20, 0, 0, 20, 0, 0, 20, 0]
    assert len({source for source, _ in schedule.block_copies}) == 3
    run_to_end(scheduler, device)
    assert_solo(*requests)


def test_a_prompt_that_comes_in_chunks_is_forked_after_the_last():
    scheduler, device = make_scheduler(max_num_batched_tokens=16)
    requests = add(scheduler, *samples(3, 40))
    fed = [[row.num_fed for row in step(scheduler, device).rows] for _ in range(3)]
    assert fed == [[16], [16], [8, 0, 0]]
    run_to_end(scheduler, device)
    assert_solo(*requests)


def test_samples_find_the_blocks_of_forks_and_forks_those_of_samples():
    scheduler, device = make_scheduler()
    _, fork, *_ = add(scheduler, *samples(3, 20, 20))
    run_to_end(scheduler, device)
    turn = host_request("turn", fork.prompt_token_ids + fork.output_token_ids)
    again = make_request("again", 20)
    add(scheduler, turn, again)
    run_to_end(scheduler, device)
    assert turn.history.num_prefix_cached_tokens == 32  # the last of 40 tokens was never fed
    assert again.history.num_prefix_cached_tokens == 16
    assert_solo(turn, again)


def _two(**kwargs):
    one, other = ({key: value[i] for key, value in kwargs.items()} for i in (0, 1))
    return [make_request(0, 20, **one), make_request(1, 20, **other)]


def _scored(which):
    params = [
        SamplingParams(max_tokens=4, prompt_logprobs=0 if i == which else None) for i in (0, 1)
    ]
    return [host_request(str(i), range(1, 21), params[i]) for i in (0, 1)]


@pytest.mark.parametrize(
    "requests",
    [
        _two(cache_salt=(None, "a")),
        _two(first=(1, 2)),
        _two(prefill_only=(False, True)),
        _two(prefill_only=(True, False)),
        _scored(0),
        _scored(1),
    ],
    ids=["salt", "tokens", "prefill only", "leader prefill only", "scored leader", "scored"],
)
def test_another_prompt_salt_or_purpose_is_no_fork(requests):
    scheduler, device = make_scheduler()
    add(scheduler, *requests)
    assert num_forks(run_to_end(scheduler, device)) == 0
    assert_solo(*requests)


def test_without_prefix_caching_each_sample_feeds_its_prompt():
    scheduler, device = make_scheduler(caching=False)
    requests = add(scheduler, *samples(3, 20))
    assert [row.num_fed for row in step(scheduler, device).rows] == [20, 20, 20]
    run_to_end(scheduler, device)
    assert_solo(*requests)


def test_prompts_begun_under_other_weights_are_not_forked():
    scheduler, device = make_scheduler(max_num_batched_tokens=16)
    add(scheduler, make_request(0, 20))
    step(scheduler, device)
    scheduler.invalidate_prefix_cache()
    device.weights += 1
    (late,) = add(scheduler, make_request(1, 20))
    assert num_forks(run_to_end(scheduler, device)) == 0
    assert_solo(late)


def test_a_sample_that_comes_later_feeds_what_fills_no_block():
    scheduler, device = make_scheduler()
    (leader,) = add(scheduler, make_request(0, 20, 9))
    step(scheduler, device)
    (late,) = add(scheduler, make_request(1, 20))
    assert shape(step(scheduler, device)) == [("0", 20, 1), ("1", 16, 4)]
    run_to_end(scheduler, device)
    assert_solo(leader, late)


def test_a_sample_that_has_begun_to_answer_is_no_fork():
    scheduler, device = make_scheduler()
    (old,) = add(scheduler, make_request(0, 20, 9))
    step(scheduler, device)
    scheduler.preempt()
    (urgent,) = add(scheduler, make_request(1, 20, priority=-1))
    assert shape(step(scheduler, device)) == [("1", 16, 4), ("0", 16, 5)]
    run_to_end(scheduler, device)
    assert_solo(old, urgent)


def test_a_sample_that_is_swapped_out_takes_its_own_blocks_back():
    scheduler, device = make_scheduler(
        max_num_batched_tokens=16, preemption_mode="swap", num_host_blocks=20
    )
    (old,) = add(scheduler, make_request(0, 40))
    step(scheduler, device)
    scheduler.preempt()
    (urgent,) = add(scheduler, make_request(1, 40, priority=-1))
    for _ in range(2):
        schedule = step(scheduler, device)
    assert shape(schedule) == [("1", 32, 8), ("0", 16, 8)]
    run_to_end(scheduler, device)
    assert_solo(old, urgent)


def test_a_fork_waits_for_a_block_of_its_own():
    scheduler, device = make_scheduler(num_blocks=5)
    requests = add(scheduler, *samples(3, 20))
    assert len(step(scheduler, device).rows) == 2  # 2 full blocks and 2 of their own
    run_to_end(scheduler, device)
    assert_solo(*requests)


@pytest.mark.parametrize("num_host_blocks", [0, 20])
@pytest.mark.parametrize("is_read", [False, True])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_preemption_before_and_after_the_first_token_changes_nothing(
    num_host_blocks, is_read, count
):
    mode = "swap" if num_host_blocks else "recompute"
    scheduler, device = make_scheduler(preemption_mode=mode, num_host_blocks=num_host_blocks)
    requests = add(scheduler, *samples(3, 20, 9))
    device.note_waiting()
    schedule = scheduler.schedule()
    tokens = device.launch(schedule)
    if is_read:
        read(device, schedule, tokens)
    assert len(scheduler.preempt(count)) == count
    scheduler.check_invariants()
    if not is_read:
        read(device, schedule, tokens)
    run_to_end(scheduler, device)
    assert_solo(*requests)


def test_forks_outlive_their_leader():
    scheduler, device = make_scheduler()
    leader, *forks = add(scheduler, *samples(3, 20))
    schedule = scheduler.schedule()
    tokens = device.launch(schedule)
    scheduler.abort(leader.request_id)
    scheduler.check_invariants()
    read(device, schedule, tokens)
    run_to_end(scheduler, device)
    assert_solo(*forks)


def test_a_step_that_raised_is_planned_again_with_its_forks():
    scheduler, device = make_scheduler()
    requests = add(scheduler, *samples(3, 20))
    scheduler.schedule()
    scheduler.requeue_all()
    device.reset_cache()
    assert [row.num_fed for row in step(scheduler, device).rows] == [20, 0, 0]
    run_to_end(scheduler, device)
    assert_solo(*requests)


def test_each_row_of_a_bad_hidden_state_ends_and_nothing_of_it_is_found():
    scheduler, device = make_scheduler()
    requests = add(scheduler, *samples(3, 20))
    schedule = scheduler.schedule()
    scheduler.update(schedule, device.launch(schedule), [0, 0, 0])
    assert [request.finish_reason for request in requests] == ["error"] * 3
    scheduler.check_invariants()
    assert scheduler.pool.num_cached_blocks == 0
    (again,) = add(scheduler, make_request(3, 20))
    run_to_end(scheduler, device)
    assert again.history.num_prefix_cached_tokens == 0
    assert_solo(again)
