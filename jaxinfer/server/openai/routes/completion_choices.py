"""Writes the choices of `/v1/completions`, whole or as parts of a stream."""

from collections.abc import Iterator

from jaxinfer.model.text.tokenizer import Tokenizer
from jaxinfer.outputs import CompletionOutput, RequestOutput
from jaxinfer.server.openai.logprobs import CompletionLogprobsWriter, joined, prompt_logprobs
from jaxinfer.server.openai.protocol.completion import (
    CompletionBody,
    CompletionChoice,
    CompletionLogprobs,
)


class ChoiceWriter:
    """Writes one choice of one request."""

    def __init__(
        self,
        index: int,
        body: CompletionBody,
        tokenizer: Tokenizer | None,
        skip_special_tokens: bool,
    ) -> None:
        self._index = index
        self._body = body
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        as_ids = bool(body.return_tokens_as_token_ids)
        self._logprobs = CompletionLogprobsWriter(tokenizer, as_ids=as_ids)
        self._is_first = True
        self._has_ended = False

    def whole(self, completion: CompletionOutput, output: RequestOutput) -> CompletionChoice:
        """A finished choice; what was not asked for is null."""
        choice = self.write(completion, output)
        for name in ("token_ids", "prompt_token_ids", "prompt_logprobs"):
            choice.setdefault(name, None)
        return choice

    def write(self, completion: CompletionOutput, output: RequestOutput) -> CompletionChoice:
        """The choice or its new part; the first part has the prompt, if that is echoed."""
        body = self._body
        first, self._is_first = self._is_first, False
        prompt = self._prompt_text(output) if first and body.echo else None
        choice = self._plain((prompt or "") + completion.text, completion)
        if body.logprobs is not None:
            choice["logprobs"] = self._scores(completion, output, prompt, first=first)
        if body.return_token_ids:
            choice["token_ids"] = list(completion.token_ids)
        if first and body.return_token_ids:
            choice["prompt_token_ids"] = output.prompt_token_ids
        if first and body.prompt_logprobs is not None:
            choice["prompt_logprobs"] = prompt_logprobs(output.prompt_logprobs or [])
        return choice

    def stream(
        self, completion: CompletionOutput, output: RequestOutput
    ) -> Iterator[CompletionChoice]:
        """Parts for chunks: the new text, then the end by itself; none without new text."""
        if self._has_ended:
            return
        is_new = bool(completion.text or (self._is_first and self._body.echo))
        if not is_new and completion.token_ids:
            is_new = self._body.logprobs is not None or bool(self._body.return_token_ids)
        if is_new:
            part = self.write(completion, output)
            part["finish_reason"] = part["stop_reason"] = None
            yield part
        if completion.finish_reason is not None:
            self._has_ended = True
            yield self._plain("", completion)

    def _plain(self, text: str, completion: CompletionOutput) -> CompletionChoice:
        return CompletionChoice(
            index=self._index,
            text=text,
            logprobs=None,
            finish_reason=completion.finish_reason,
            stop_reason=completion.stop_reason,
        )

    def _prompt_text(self, output: RequestOutput) -> str:
        if output.prompt is not None or self._tokenizer is None:
            return output.prompt or ""
        return self._tokenizer.decode(output.prompt_token_ids, skip_special_tokens=False)

    def _scores(
        self,
        completion: CompletionOutput,
        output: RequestOutput,
        prompt: str | None,
        *,
        first: bool,
    ) -> CompletionLogprobs:
        writer, token_ids = self._logprobs, output.prompt_token_ids
        skip = self._skip_special_tokens
        of_prompt = None
        if prompt is not None:
            entries = output.prompt_logprobs or [None] * len(token_ids)
            writer.start_at(0, skip_special_tokens=False)
            of_prompt = writer.write(token_ids, entries, skip_special_tokens=False)
        if first:
            writer.start_at(len(prompt or ""), token_ids, skip_special_tokens=skip)
        logprobs = completion.logprobs or []
        own = writer.write(completion.token_ids, logprobs, skip_special_tokens=skip)
        return own if of_prompt is None else joined(of_prompt, own)
