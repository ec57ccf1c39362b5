"""Log-probabilities of the tokens that follow an answer's reasoning, for `/v1/responses`."""

from collections.abc import Callable, Sequence

from jaxinfer.model.text.thinking_tokens import Thinking, thinking_tokens
from jaxinfer.model.text.tokenizer import Tokenizer
from jaxinfer.outputs import CompletionOutput
from jaxinfer.server.openai.logprobs import chat_logprobs
from jaxinfer.server.openai.protocol.chat import TokenLogprob
from jaxinfer.serving.parsers.answer_format import AnswerFormat
from jaxinfer.serving.parsers.registry import REASONING_PARSERS


class ContentLogprobs:
    """Leaves out the tokens of the reasoning and of its tags.

    Args:
        count: likeliest tokens at each place; None for no log-probabilities at all.
        answer: the format for parsing the answer; None if all of it is content.
    """

    def __init__(
        self, count: int | None, tokenizer: Tokenizer | None, answer: AnswerFormat | None
    ) -> None:
        self._count = count
        self._tokenizer = tokenizer
        self._is_content = (
            _content_test(tokenizer, answer)
            if tokenizer is not None and answer is not None
            else lambda token_id: True
        )

    def of(self, completion: CompletionOutput) -> Sequence[TokenLogprob]:
        """The log-probabilities of an output's new tokens."""
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


def _content_test(tokenizer: Tokenizer, answer: AnswerFormat) -> Callable[[int], bool]:
    """A function of an answer's next token that returns True once the reasoning is over."""
    if answer.reasoning is None or answer.stage == "over":
        return lambda token_id: True
    tokens = thinking_tokens(tokenizer, tokenizer.vocab_size) if answer.tags_are_tokens else None
    if tokens is not None:
        thinking = Thinking(tokens, answer.stage, calls=answer.has_calls)
        return lambda token_id: not thinking.take(token_id) and thinking.stage == "over"
    is_open = answer.stage == "open"
    parser = REASONING_PARSERS[answer.reasoning](is_open=is_open, calls=answer.has_calls)

    def is_content(token_id: int) -> bool:
        if (before := parser.state) == "over":
            return True
        # A byte a character: tags are ASCII, and partial characters do no harm.
        parser.feed(tokenizer.token_bytes(token_id).decode("latin-1"))
        return before == "possible" and parser.state == "over"

    return is_content
