"""Log-probabilities in OpenAI's formats; minus infinity, which JSON lacks, is -9999."""

from collections.abc import Iterable, Sequence

from msgspec import Raw
from msgspec.json import encode

from jaxinfer.logprobs import Logprob, LogprobsAtPosition
from jaxinfer.model.text.text_decoder import plain_decoder
from jaxinfer.model.text.tokenizer import Tokenizer
from jaxinfer.outputs import RequestOutput
from jaxinfer.server.openai.protocol.answers import PromptLogprob, PromptLogprobs
from jaxinfer.server.openai.protocol.chat import ChatLogprobs, TokenLogprob, TopLogprob
from jaxinfer.server.openai.protocol.completion import CompletionLogprobs

_LOWEST = -9999.0
_BYTES_A_SCORE, _BYTES_A_TOKEN = 60, 8


def answer_size(output: RequestOutput) -> int:
    """The approximate size of an answer with this output, in bytes."""
    scores = [output.prompt_logprobs, *(each.logprobs for each in output.outputs)]
    num_scores = sum(len(each) * len(each[-1] or ()) for each in scores if each)
    num_tokens = sum(len(each.token_ids) for each in output.outputs)
    return num_scores * _BYTES_A_SCORE + num_tokens * _BYTES_A_TOKEN


def finite(logprob: float) -> float:
    """A log-probability as JSON can write it."""
    return max(logprob, _LOWEST)


def _name(token_id: int, tokenizer: Tokenizer | None, as_id: bool) -> str:
    if as_id or tokenizer is None:
        return f"token_id:{token_id}"
    return tokenizer.token_text(token_id)


class CompletionLogprobsWriter:
    """Writes the log-probabilities of one choice of `/v1/completions`, in as many parts as it has.

    Args:
        as_ids: write "token_id:7" in place of a token's text.
    """

    def __init__(self, tokenizer: Tokenizer | None, *, as_ids: bool) -> None:
        self._tokenizer = tokenizer
        self._as_ids = as_ids
        self._offset = 0
        self._decoder = plain_decoder()

    def start_at(
        self, offset: int, preceding: Sequence[int] = (), *, skip_special_tokens: bool
    ) -> None:
        """Continue at this character offset, with a new text behind `preceding` tokens."""
        self._offset = offset
        if self._tokenizer is not None:
            self._decoder = self._tokenizer.text_decoder(
                preceding, skip_special_tokens=skip_special_tokens
            )

    def write(
        self,
        token_ids: Sequence[int],
        entries: Iterable[LogprobsAtPosition | None],
        *,
        skip_special_tokens: bool,
    ) -> CompletionLogprobs:
        """The log-probabilities of these tokens.

        Args:
            entries: one for each token; None for the first of a prompt.
            skip_special_tokens: special tokens are left out of the choice's text.
        """
        part = CompletionLogprobs(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])
        for token_id, entry in zip(token_ids, entries, strict=True):
            part["tokens"].append(_name(token_id, self._tokenizer, self._as_ids))
            part["text_offset"].append(self._offset)
            part["token_logprobs"].append(finite(entry[token_id].logprob) if entry else None)
            part["top_logprobs"].append(self._top(entry) if entry else None)
            self._advance(token_id, skip_special_tokens)
        return part

    def _top(self, entry: LogprobsAtPosition) -> dict[str, float]:
        """Log-probabilities by token text; of tokens with the same text, the likeliest is kept."""
        top: dict[str, float] = {}
        for token_id, logprob in entry.items():
            name = _name(token_id, self._tokenizer, self._as_ids)
            top[name] = max(top.get(name, _LOWEST), logprob.logprob)
        return top

    def _advance(self, token_id: int, skip_special_tokens: bool) -> None:
        tokenizer = self._tokenizer
        if tokenizer is None or (skip_special_tokens and tokenizer.is_special(token_id)):
            return
        self._offset += len(self._decoder.decode(tokenizer.token_bytes(token_id)))


def joined(first: CompletionLogprobs, second: CompletionLogprobs) -> CompletionLogprobs:
    """Two parts as one."""
    return CompletionLogprobs(
        tokens=first["tokens"] + second["tokens"],
        token_logprobs=first["token_logprobs"] + second["token_logprobs"],
        top_logprobs=first["top_logprobs"] + second["top_logprobs"],
        text_offset=first["text_offset"] + second["text_offset"],
    )


def chat_logprobs(
    token_ids: Sequence[int],
    entries: Iterable[LogprobsAtPosition],
    count: int,
    tokenizer: Tokenizer | None,
    *,
    as_ids: bool,
) -> ChatLogprobs:
    """Log-probabilities of an answer's tokens.

    Args:
        count: number of likeliest tokens at each position.
        as_ids: write "token_id:7" in place of a token's text.
    """

    def written(token_id: int, logprob: Logprob) -> TopLogprob:
        data = list(tokenizer.token_bytes(token_id)) if tokenizer else []
        name = _name(token_id, tokenizer, as_ids)
        return TopLogprob(token=name, logprob=finite(logprob.logprob), bytes=data)

    content: list[TokenLogprob] = []
    for token_id, entry in zip(token_ids, entries, strict=True):
        likeliest = sorted(entry.items(), key=lambda item: -item[1].logprob)[:count]
        top = [written(*item) for item in likeliest]
        content.append(TokenLogprob(**written(token_id, entry[token_id]), top_logprobs=top))
    return ChatLogprobs(content=content)


def prompt_logprobs(entries: Sequence[LogprobsAtPosition | None]) -> PromptLogprobs:
    """Log-probabilities of a prompt's tokens, by token id, as vLLM's answers have them.

    Each entry is encoded to JSON at once: there may be millions, too many to exist as objects.
    """
    written = [None if entry is None else Raw(encode(_by_id(entry))) for entry in entries]
    return written  # pyright: ignore[reportReturnType]


def _by_id(entry: LogprobsAtPosition) -> dict[str, PromptLogprob]:
    return {
        str(token_id): {
            "logprob": finite(each.logprob),
            "rank": each.rank,
            "decoded_token": each.decoded_token,
        }
        for token_id, each in entry.items()
    }
