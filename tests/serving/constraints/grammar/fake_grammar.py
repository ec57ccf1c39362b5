"""A toy grammar for the toy device: it begins behind a thinking, masks tokens and forces others.

All of that is a pseudo-random function of the tokens before, so an answer is the same in any batch.
"""

from collections.abc import Iterator, Sequence

from jaxinfer.serving.constraints.constraint import NextToken
from tests.serving.runner.fake_device import chain_of, extend_chain, masked_token, next_token


class FakeGrammar:
    """A constraint, of which the toy device knows the mask.

    Args:
        prompt_token_ids: what the answer follows.
    """

    starts_at = 0

    def __init__(self, prompt_token_ids: Sequence[int]) -> None:
        self._prompt = list(prompt_token_ids)

    def after(self, token_ids: Sequence[int]) -> NextToken:
        """Nothing within a thinking; then two to four tokens are forced, or there is a mask."""
        if self._thinks_after(token_ids):
            return NextToken()
        chain = chain_of([*self._prompt, *token_ids])
        forced: list[int] = []
        for _ in range(2 + chain % 3 if chain % 5 == 0 else 0):
            forced.append(masked_token(chain))
            chain = extend_chain(chain, forced[-1])
        return NextToken(forced=forced, mask=self)

    def _thinks_after(self, token_ids: Sequence[int]) -> bool:
        chain = chain_of(self._prompt)
        thinks = chain % 4 > 0
        for token in token_ids:
            chain = extend_chain(chain, token)
            thinks = thinks and chain % 5 > 0
        return thinks


def guided_tokens(prompt_token_ids: Sequence[int]) -> Iterator[int]:
    """An answer without end, of which each token is drawn after all before it are known."""
    grammar, answer = FakeGrammar(prompt_token_ids), list[int]()
    while True:
        chain = chain_of([*prompt_token_ids, *answer])
        wanted = grammar.after(answer)
        drawn = masked_token(chain) if wanted.mask else next_token(chain)
        new = wanted.forced or [drawn]
        answer += new
        yield from new
