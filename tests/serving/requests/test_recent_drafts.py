"""New sequences begin with a rest where drafts lose, and some begin with drafts to find out."""

import pytest

from jaxinfer.serving.requests.draft_record import DraftRecord
from jaxinfer.serving.requests.recent_drafts import RecentDrafts


def answer(recent, gained, num_tokens=12):
    """A short answer of its own, whose steps with drafts gain so many; its steps with drafts."""
    record, known = DraftRecord(recent=recent), 10
    record.begin(known)
    end, num_drafted = known + num_tokens, 0
    while known < end:
        drafts = record.is_wanted(known)
        num_drafted += drafts
        known += 1 + gained * drafts
        if drafts:
            record.note(gained, known)
    return num_drafted


def losing():
    """What is known once short answers have failed, and the answers that it took."""
    recent, count = RecentDrafts(), 0
    while not recent.begins_resting():
        answer(recent, 0)
        count += 1
    return recent, count


def test_short_answers_whose_drafts_fail_come_to_rest_from_their_beginning():
    _, count = losing()
    assert 4 < count < 12


@pytest.mark.parametrize("gained", [1, 7])
def test_where_drafts_pay_all_sequences_begin_as_where_nothing_is_known(gained):
    recent = RecentDrafts()
    for _ in range(200):
        record = DraftRecord(recent=recent)
        record.begin(10)
        fresh = DraftRecord(recent=recent)
        assert (record.gain, record.is_wanted(10)) == (fresh.gain, True)
        assert not record.is_untried
        answer(recent, gained)


def test_while_drafts_fail_some_sequences_begin_with_them_and_ever_fewer():
    recent, _ = losing()
    drafted = [answer(recent, 0) > 0 for _ in range(4000)]
    assert 0 < sum(drafted[:200]) < 50
    assert 0 < sum(drafted[-600:]) < 40


def test_texts_that_change_are_found():
    recent, _ = losing()
    for _ in range(2000):
        answer(recent, 0)
    drafted = [answer(recent, 3) > 0 for _ in range(400)]
    assert all(drafted[300:])


def test_a_rest_ends_where_drafts_of_some_that_rest_are_right():
    recent, _ = losing()
    record = DraftRecord(recent=recent)
    for place in range(16):  # beside another
        record.note(7, place)
    assert not recent.begins_resting()


def test_a_sequence_that_goes_on_counts_for_its_first_steps_alone():
    recent = RecentDrafts()
    record = DraftRecord(recent=recent)
    for place in range(16):
        record.note(1, place)
    gain = recent.gain
    for place in range(16, 500):
        record.note(7, place)
    assert recent.gain == gain


def test_a_sequence_that_rests_untried_drafts_once_its_drafts_beside_others_are_right():
    recent, _ = losing()
    record = DraftRecord(recent=recent)
    record.begin(10)
    assert record.is_untried
    assert not record.is_wanted(10)
    record.note(7, 18)
    assert record.is_wanted(18)
    assert not record.is_untried


def test_a_sequence_that_rests_is_tried_once_its_own_drafts_fail():
    recent, _ = losing()
    record = DraftRecord(recent=recent, num_steps=8)
    record.begin(10)
    for place in range(11, 27):
        record.note(0, place)
    assert not record.is_untried
    assert [record.is_wanted(place) for place in (27, 265, 266)] == [False, False, True]


def test_what_cannot_draft_is_no_new_sequence():
    recent, _ = losing()
    for _ in range(1000):
        DraftRecord(is_possible=False, recent=recent).begin(10)
    assert recent.begins_resting()
