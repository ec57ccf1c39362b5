"""A toy grammar for the toy device: it begins behind a thinking, masks tokens and forces others.

All of that is a pseudo-random function of the tokens before, so an answer is the same in any batch.
"""

from collections.abc import Iterator, Sequence

from tests.serving.runner.fake_device import chain_of, extend_chain, masked_token, next_token


class FakeMatcher:
    """Follows one answer; what the scheduler asks of a `Matcher`.

    Args:
        prompt_token_ids: what the answer follows.

    Attributes:
        is_thinking: whether the answer has a thinking, and that goes on.
    """

    def __init__(self, prompt_token_ids: Sequence[int]) -> None:
        self._prompt = list(prompt_token_ids)
        self._chain = chain_of(self._prompt)
        self.is_thinking = self._chain % 4 > 0

    def consume(self, new: Sequence[int]) -> None:
        """Take in the next tokens of a thinking."""
        for token in new:
            assert self.is_thinking
            self._chain = extend_chain(self._chain, token)
            self.is_thinking = self._chain % 5 > 0

    def forced_after(self, token_ids: Sequence[int]) -> list[int]:
        """Two to four tokens, which masks would leave alone, or none."""
        chain = chain_of([*self._prompt, *token_ids])
        forced: list[int] = []
        for _ in range(2 + chain % 3 if chain % 5 == 0 else 0):
            forced.append(masked_token(chain))
            chain = extend_chain(chain, forced[-1])
        return forced


def guided_tokens(prompt_token_ids: Sequence[int]) -> Iterator[int]:
    """An answer without end, of which each token is drawn after all before it are known."""
    matcher, answer = FakeMatcher(prompt_token_ids), list[int]()
    while True:
        chain = chain_of([*prompt_token_ids, *answer])
        if matcher.is_thinking:
            new = [next_token(chain)]
            matcher.consume(new)
        else:
            new = matcher.forced_after(answer) or [masked_token(chain)]
        answer += new
        yield from new
