"""Counts the tokens that a model spends on reasoning."""

from collections.abc import Sequence

from jaxinfer.model.text.tokenizer import Tokenizer
from jaxinfer.serving.parsers.registry import REASONING_PARSERS


class ReasoningTokens:
    """The tokens of one answer's reasoning, the tags around it left out.

    A reasoning parser reads each token for itself, so that the count does not depend on how an
    answer is divided, and no token is asked twice once the reasoning is over.

    Args:
        parser: name of a reasoning parser.
        tokenizer: gives the bytes of a token.
        is_open: the prompt has opened the reasoning already.
    """

    def __init__(self, parser: str, tokenizer: Tokenizer, *, is_open: bool) -> None:
        self._parser = REASONING_PARSERS[parser](is_open=is_open)
        self._tokenizer = tokenizer
        self.count = 0
        """Tokens of reasoning so far."""

    def add(self, token_ids: Sequence[int]) -> None:
        """Read more of the answer."""
        parser = self._parser
        for token_id in token_ids:
            before = parser.state
            if before == "over":
                return
            # A byte a character: tags are ASCII, and half a character is no obstacle.
            parser.feed(self._tokenizer.token_bytes(token_id).decode("latin-1"))
            self.count += before == parser.state == "open"
