"""A sequence drafts while its drafts are worth their time, and tries again later and later."""

from jaxinfer.serving.requests.draft_record import DraftRecord


def drafted_share(gains, num_tokens):
    """The share of steps that draft, whose drafts gain what `gains` says of a place."""
    record, drafted, steps, known = DraftRecord(), 0, 0, 0
    while known < num_tokens:
        steps += 1
        gained = 0
        if record.is_wanted(known):
            drafted += 1
            gained = gains(known)
        known += 1 + gained
        if record.is_wanted(known - 1 - gained):
            record.note(gained, known)
    return drafted / steps


def test_a_sequence_whose_drafts_are_right_drafts_on():
    assert drafted_share(lambda place: 7, 2000) == 1


def test_a_sequence_whose_drafts_are_never_right_drafts_less_and_less():
    shares = [drafted_share(lambda place: 0, count) for count in (64, 512, 4096)]
    assert shares[0] > shares[1] > shares[2]
    assert shares[1] < 0.16
    assert shares[2] < 0.06


def test_a_pause_between_passages_that_repeat_is_no_reason_to_rest():
    assert drafted_share(lambda place: 7 if place % 50 < 40 else 0, 2000) == 1


def test_a_sequence_that_repeats_itself_late_is_found():
    gains = []
    drafted_share(lambda place: gains.append(place) or (7 if place > 1000 else 0), 4000)
    assert sum(place > 1000 for place in gains) > 300  # of the 375 steps there


def test_a_rest_ends_where_drafts_beside_others_are_right():
    record = DraftRecord()
    for place in range(20):
        record.note(0, place)
    assert not record.is_wanted(21)
    for place in range(21, 40):
        record.note(0, place)  # beside others; a rest does not grow by it
    assert record.is_wanted(60)
    assert not record.is_wanted(40)
    record.note(7, 48)
    assert record.is_wanted(48)


def test_a_rest_is_of_as_many_launches_however_many_steps_they_have():
    ends = []
    for num_steps in (1, 8):
        record = DraftRecord(num_steps=num_steps)
        for place in range(20):
            record.note(0, place)
        ends.append(next(place for place in range(20, 999) if record.is_wanted(place)))
    start = ends[0] - 32
    assert ends[1] == start + 32 * 8


def test_what_cannot_draft_never_does():
    assert not DraftRecord(is_possible=False).is_wanted(10)
