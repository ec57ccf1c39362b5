"""All masks of a step at once: each as if it were alone, in memory that steps share."""

import numpy as np

from jaxinfer.serving.slots.step_masks import MASK_ROWS, MaskBuffer
from tests.serving.constraints.grammar.grammars import (
    SCHEMAS,
    allowed_ids,
    bundled_tokenizer,
    matcher,
)


def test_masks_of_many_answers_are_those_of_each_alone():
    matchers = [matcher(json=schema) for schema in SCHEMAS * 4]
    together = MaskBuffer().fill(matchers)
    assert len(matchers) > MASK_ROWS
    assert together.shape[0] == 2 * MASK_ROWS
    for answer, mask in zip(matchers, together, strict=False):
        ids = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
        assert ids.tolist() == allowed_ids(answer).tolist()


def test_two_steps_share_a_buffer_and_leave_nothing_of_the_step_before_but_one():
    masks, first, second = MaskBuffer(), matcher(regex="a|b"), matcher(regex="c")
    before = masks.fill([first, second])
    in_flight = masks.fill([first])
    second.follow(bundled_tokenizer().encode("c"))
    after = masks.fill([second])
    assert np.shares_memory(before, after)
    assert not np.shares_memory(in_flight, after)
    ids = np.flatnonzero(np.unpackbits(after[0].view(np.uint8), bitorder="little"))
    assert set(ids.tolist()) == set(bundled_tokenizer().eos_token_ids)


def test_an_answer_that_fails_leaves_the_masks_of_others_alone():
    good, bad = matcher(regex="a|b"), matcher(regex="a|b")
    expected = allowed_ids(good).tolist()
    bad.state.consume_tokens([0])
    assert bad.state.is_error()
    mask = MaskBuffer().fill([bad, good])[1]
    ids = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
    assert ids.tolist() == expected
