"""A toy grammar for the toy device: it refuses, masks and forces tokens pseudo-randomly.

All of that is a function of the tokens before, so an answer is the same in any batch.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from jaxinfer.serving.guided.matcher import NextDraw
from tests.serving.runner.fake_device import chain_of, extend_chain, masked_token, next_token


class FakeMatcher:
    """Follows one answer; what the scheduler asks of a `Matcher`.

    Tokens are drawn freely up to one that is refused, or that counts and is the last of its run, as
    the end of thinking is. The next 1 to 3 are drawn under masks; then a run begins, of which the
    first token may be checked alone.

    Args:
        prompt_token_ids: what the answer follows.
    """

    def __init__(self, prompt_token_ids: Sequence[int]) -> None:
        self._prompt = list(prompt_token_ids)
        self._mask_from(0, chain_of(self._prompt))

    def is_free_at(self, number: int) -> bool:
        return number >= self._first

    def is_late_at(self, number: int) -> bool:
        return number < self._together

    def take_free(self, token_ids: Sequence[int], new: list[int]) -> int:
        chain = chain_of([*self._prompt, *token_ids])
        for i, token in enumerate(new):
            number = len(token_ids) + i
            is_masked = number < self._first
            if not is_masked and chain % 7 == 0:
                self._mask_from(number, chain)
                return i
            chain = extend_chain(chain, token)
            if not is_masked and chain % 11 == 0:
                self._mask_from(number + 1, chain)
                return i + 1
        return len(new)

    def next_draw(self, token_ids: Sequence[int]) -> NextDraw | None:
        """Whatever stands for a mask, or nothing before a token that is checked alone."""
        number = len(token_ids)
        if self.forced_after(token_ids):
            return None
        mask = None if self.is_free_at(number) else np.zeros(1, np.int32)
        return NextDraw(mask, is_alone=not number + 1 == self._first == self._together)

    @property
    def may_begin_a_run(self) -> bool:
        return self._first == self._together

    def note_mask(self, allowed: object) -> None:
        pass

    def forced_after(self, token_ids: Sequence[int]) -> list[int]:
        """Two to four tokens, which masks would leave alone, or none."""
        chain = chain_of([*self._prompt, *token_ids])
        forced: list[int] = []
        for _ in range(2 + chain % 3 if chain % 5 == 0 else 0):
            forced.append(masked_token(chain))
            chain = extend_chain(chain, forced[-1])
        return forced

    def _mask_from(self, number: int, chain: int) -> None:
        self._first = number + 1 + (chain >> 5) % 3
        self._together = self._first + (chain >> 9) % 2


def guided_tokens(prompt_token_ids: Sequence[int]) -> Iterator[int]:
    """An answer without end, of which each token is drawn after all before it are checked."""
    matcher, answer = FakeMatcher(prompt_token_ids), list[int]()
    while True:
        number, chain = len(answer), chain_of([*prompt_token_ids, *answer])
        new = matcher.forced_after(answer) if matcher.is_late_at(number) else []
        if not new and matcher.is_free_at(number):
            drawn = [next_token(chain)]
            new = drawn[: matcher.take_free(answer, drawn)]
        elif not new:
            new = [masked_token(chain)]
        answer += new
        yield from new
