"""Launches of several decode steps: who takes part, and how many tokens each row keeps."""

import pytest

from jaxinfer.sampling_params import SamplingParams
from jaxinfer.serving.scheduler.multi_step import MultiStep
from tests.serving.requests.host_request import host_request
from tests.serving.runner.fake_device import run_to_end
from tests.serving.scheduler.scheduling import (
    add,
    assert_solo,
    make_request,
    make_scheduler,
    step,
)


def several(num_steps, most_rows=8, **kwargs):
    return make_scheduler(multi_step=MultiStep(num_steps, most_rows), **kwargs)


def num_steps_of(scheduler, device, count):
    return [step(scheduler, device).num_steps for _ in range(count)]


@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("num_steps", [2, 5])
def test_several_steps_a_launch_change_no_token(depth, num_steps):
    scheduler, device = several(num_steps, max_num_seqs=3)
    requests = add(scheduler, *(make_request(i, 3 + 5 * i, 2 + 7 * i, first=i) for i in range(4)))
    schedules = run_to_end(scheduler, device, depth=depth)
    assert any(schedule.num_steps == num_steps for schedule in schedules)
    assert_solo(*requests)


def test_each_row_keeps_as_many_tokens_as_it_may_get():
    scheduler, device = several(8)
    requests = add(scheduler, make_request(0, 7, 2), make_request(1, 7, 20, first=5))
    assert step(scheduler, device).num_steps == 1
    multi_step = step(scheduler, device)
    assert [row.num_reserved for row in multi_step.rows] == [1, 8]
    run_to_end(scheduler, device)
    assert_solo(*requests)


def test_more_rows_than_that_take_one_step_each():
    scheduler, device = several(4, most_rows=2)
    add(scheduler, *(make_request(i, 4, 20, first=i) for i in range(3)))
    assert num_steps_of(scheduler, device, 3) == [1, 1, 1]
    scheduler.abort("0")
    assert num_steps_of(scheduler, device, 1) == [4]


def test_who_waits_for_blocks_beside_a_free_slot_holds_several_steps_up():
    scheduler, device = several(4, max_num_seqs=2, num_blocks=4)
    add(scheduler, make_request(0, 4, 11), make_request(1, 20, 2))
    assert num_steps_of(scheduler, device, 2) == [1, 1]
    scheduler.abort("1")
    assert num_steps_of(scheduler, device, 1) == [4]


def test_who_waits_for_a_slot_does_not():
    scheduler, device = several(4, max_num_seqs=2)
    add(scheduler, *(make_request(i, 4, 9, first=i) for i in range(3)))
    assert num_steps_of(scheduler, device, 4) == [1, 4, 4, 1]


@pytest.mark.parametrize(
    "params",
    [
        {"frequency_penalty": 1.0},
        {"logprobs": 5},
        {"logit_bias": {3: 1.0}},
        {"bad_words": ["x"]},
        {"min_tokens": 3},
    ],
    ids=str,
)
def test_a_row_that_needs_its_slot_or_the_host_takes_all_to_one_step(params):
    scheduler, device = several(4)
    plain = make_request(0, 4, 20)
    other = host_request("1", [3, 4], SamplingParams(max_tokens=20, **params))
    add(scheduler, plain, other)
    assert num_steps_of(scheduler, device, 3) == [1, 1, 1]
    scheduler.abort("1")
    assert num_steps_of(scheduler, device, 1) == [4]


def test_the_end_of_the_longest_comes_in_single_steps():
    scheduler, device = several(4)
    (request,) = add(scheduler, make_request(0, 4, 8))
    schedules = run_to_end(scheduler, device)
    assert [schedule.num_steps for schedule in schedules] == [1, 4, 1, 1, 1]
    assert_solo(request)


def test_nothing_is_preempted_for_it():
    scheduler, device = several(8, num_blocks=4, caching=False)
    requests = add(scheduler, make_request(0, 8, 9), make_request(1, 8, 9, first=5))
    assert num_steps_of(scheduler, device, 2) == [1, 1]
    run_to_end(scheduler, device)
    assert_solo(*requests)


def test_no_table_outgrows_the_longest_sequence():
    scheduler, device = several(6, max_model_len=24)
    (request,) = add(scheduler, make_request(0, 14, None))
    schedules = run_to_end(scheduler, device)
    assert [schedule.num_steps for schedule in schedules] == [1, 6, 1, 1, 1]
    assert_solo(request, max_model_len=24)


def test_bad_tokens_of_a_row_end_it_behind_its_good_ones():
    scheduler, device = several(4)
    requests = add(scheduler, *(make_request(i, 4, 20, first=i) for i in range(3)))
    step(scheduler, device)
    multi_step = scheduler.schedule()
    changes = scheduler.update(multi_step, device.launch(multi_step), num_ok=[4, 2, 4])
    assert [len(change.token_ids) for change in changes] == [4, 2, 4]
    assert requests[1].finish_reason == "error"
