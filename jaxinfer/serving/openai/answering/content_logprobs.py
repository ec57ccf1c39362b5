"""Log-probabilities of the tokens that follow an answer's reasoning, for `/v1/responses`."""

from collections.abc import Sequence

from jaxinfer.model.text.tokenizer import Tokenizer
from jaxinfer.outputs import CompletionOutput
from jaxinfer.serving.openai.logprobs import chat_logprobs
from jaxinfer.serving.openai.protocol.chat import TokenLogprob
from jaxinfer.serving.parsers.reasoning import ReasoningState
from jaxinfer.serving.parsers.registry import REASONING_PARSERS


class ContentLogprobs:
    """Leaves out the tokens of the reasoning and of its tags.

    Args:
        count: likeliest tokens at each place; None for no log-probabilities at all.
        tokenizer: of the model.
        reasoning: name of the parser of the reasoning; None where none is read.
        state: in which the prompt ends.
    """

    def __init__(
        self,
        count: int | None,
        tokenizer: Tokenizer | None,
        reasoning: str | None,
        state: ReasoningState,
    ) -> None:
        self._count = count
        self._tokenizer = tokenizer
        self._parser = None
        if reasoning is not None and state != "over":
            self._parser = REASONING_PARSERS[reasoning](is_open=state == "open")

    def of(self, completion: CompletionOutput) -> Sequence[TokenLogprob]:
        """Those of an output's new tokens."""
        if self._count is None or not completion.logprobs:
            return ()
        pairs = zip(completion.token_ids, completion.logprobs, strict=True)
        content = [pair for pair in pairs if self._is_content(pair[0])]
        return chat_logprobs(
            [token_id for token_id, _ in content],
            [entry for _, entry in content],
            self._count,
            self._tokenizer,
            as_ids=False,
        )["content"]

    def _is_content(self, token_id: int) -> bool:
        parser = self._parser
        if parser is None or self._tokenizer is None or (before := parser.state) == "over":
            return True
        # A byte a character: tags are ASCII, and half a character is no obstacle.
        parser.feed(self._tokenizer.token_bytes(token_id).decode("latin-1"))
        return before == "possible" and parser.state == "over"
