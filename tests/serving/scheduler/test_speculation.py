"""What an engine's recent sequences gained from drafts tells whether a new one begins with any."""

import random

import pytest

from jaxinfer.serving.requests.draft_record import DraftRecord
from jaxinfer.serving.scheduler.speculation import DraftSize, Speculation
from tests.serving.engine.test_drafts import DraftingSetup
from tests.serving.engine.test_engine import EOS


def setup_of(draft, num_steps=1):
    setup = DraftingSetup(random.Random(0), speculation=Speculation([DraftSize(4, 3, num_steps)]))
    setup.runner.draft = lambda context, most: draft(setup, context, most)[:most]
    return setup


def wrong(setup, context, most):
    return [EOS] * most


def right(setup, context, most):
    known = list(context)
    for _ in range(most):
        known.append(setup.choose(known))
    return known[len(context) :]


def long_ones(setup, context, most):
    """Drafts are right for the one prompt that begins with 0, and for no other."""
    return right(setup, context, most) if context[0] == 0 else wrong(setup, context, most)


def short_answers(setup, count, name="s"):
    """Short answers, four at once; the rows with drafts of each four."""
    found = []
    for first in range(0, count, 4):
        before = len(setup.drafted)
        for i in range(first, first + 4):
            setup.add(f"{name}{i}", [1 + i % 5, 2, 3], max_tokens=10)
        setup.run()
        found.append(len(setup.drafted) - before)
    return found


@pytest.mark.parametrize("num_steps", [1, 4])
def test_short_answers_whose_drafts_fail_have_none_but_for_probes(num_steps):
    setup = setup_of(wrong, num_steps)
    found = short_answers(setup, 120)
    assert all(found[:3])
    assert found.count(0) > 2 / 3 * len(found)
    assert any(found[8:])


@pytest.mark.parametrize("num_steps", [1, 4])
def test_a_first_rest_is_of_as_many_launches_however_many_steps_they_have(num_steps):
    setup = setup_of(wrong, num_steps)
    short_answers(setup, 16)
    setup.add("a", [1, 2, 3], max_tokens=60)
    (request,) = setup.scheduler.unfinished()
    while request.drafts is None:
        setup.engine.step()
    known = request.num_known_tokens
    wants = [request.drafts.is_wanted(place) for place in range(known + 200)]
    assert known + 32 * num_steps - 1 <= wants.index(True) <= known + 32 * num_steps


def test_short_answers_whose_drafts_are_right_always_have_some():
    assert all(short_answers(setup_of(right), 80))


def test_drafts_that_become_right_are_found_and_kept():
    setup = setup_of(wrong)
    short_answers(setup, 60)
    setup.runner.draft = lambda context, most: right(setup, context, most)
    found = short_answers(setup, 240, "t")
    assert 0 in found
    assert all(found[-20:])


def test_one_whose_drafts_are_right_keeps_them_beside_new_ones_that_rest():
    setup = setup_of(long_ones)
    short_answers(setup, 16)
    setup.add("long", [0, 2, 3], max_tokens=100)
    for i in range(3):
        setup.add(f"beside {i}", [1 + i, 2, 3], max_tokens=10)
    long, *others = setup.scheduler.unfinished()
    long.drafts = DraftRecord(gain=3.0)
    before = len(setup.drafted)
    setup.engine.step()
    setup.engine.step()
    assert all(each.drafts is not None and each.drafts.is_untried for each in others)
    setup.run()
    rows = [row.request for row in setup.drafted[before:]]
    assert all(rows.count(request) > 5 for request in others)
    assert rows.count(long) > 20


def test_a_request_that_is_preempted_or_begun_again_is_no_new_sequence():
    setup = setup_of(wrong)
    setup.add("a", [1, 2, 3], max_tokens=60)
    (request,) = setup.scheduler.unfinished()
    while request.drafts is None:
        setup.engine.step()
    record = request.drafts
    setup.runner.fail_launches.add(setup.runner.num_launches + 2)
    setup.scheduler.preempt(1)
    setup.run()
    assert request.drafts is record
