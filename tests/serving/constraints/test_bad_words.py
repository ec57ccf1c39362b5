"""Bad words of several tokens: their last token is banned after their first ones."""

import pytest

from jaxinfer.serving.constraints.bad_words import BadWords


@pytest.mark.parametrize(
    ("output", "banned"),
    [
        ([], set()),
        ([11], {12}),
        ([11, 12], {13}),
        ([12, 11, 12], {13}),
        ([11, 5], set()),
        ([5, 12], set()),
    ],
)
def test_bad_words_ban_their_last_token_after_their_first_ones(output, banned):
    words = BadWords([[10], [11, 12], [11, 12, 13], [11, 12, 13]])
    assert words.after(output).edits.banned == banned
