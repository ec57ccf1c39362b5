"""Tokenizes the prompts of requests in threads, so that other requests' streams are not delayed."""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from jaxinfer.errors import PromptTooLongError
from jaxinfer.model.text.tokenizer import Tokenizer
from jaxinfer.sampling_params import SamplingParams
from jaxinfer.server.openai.engine_client import EngineClient
from jaxinfer.server.openai.errors import (
    ApiError,
    client_errors,
    context_length_exceeded,
    invalid,
)
from jaxinfer.server.openai.protocol.tools import with_object_arguments
from jaxinfer.server.openai.work.lanes import Lanes
from jaxinfer.serving.requests.new_request import Prompt
from jaxinfer.serving.requests.prompts import PromptReader

_FIELDS = ("prompt", "messages", "input", "tools", "chat_template_kwargs", "continue_final_message")

MOST_CHARS = 8 << 20
"""Most characters of a text that is tokenized: some seconds of work."""

_FEW_IDS = 4096  # quicker to check than to hand to a thread


class Prompts:
    """Reads the prompts of one front end's requests, which may set `template_kwargs`."""

    def __init__(self, engine: EngineClient, template_kwargs: frozenset[str]) -> None:
        self.reader = PromptReader(
            engine.tokenizer, engine.model_config.vocab_size, engine.max_model_len
        )
        self._template_kwargs = template_kwargs
        self._tokenizing = Lanes("tokenize", 4)
        # Templates have a process for each lane: more threads would only wait for each other.
        self._rendering = Lanes("render", 1)

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer; ApiError 400 if there is none."""
        if self.reader.tokenizer is None:
            raise invalid("this model is served without a tokenizer; send token ids")
        return self.reader.tokenizer

    async def read(
        self,
        given: Sequence[str | list[int]],
        *,
        name: str = "prompt",
        limit: int | None = None,
        num_outputs: int = 1,
        add_special_tokens: bool = True,
        cache_salt: str | None = None,
    ) -> list[Prompt]:
        """Check prompts and tokenize their texts.

        Args:
            limit: keep only this many last tokens of each.
            num_outputs: tokens that each must leave room for.
            add_special_tokens: to texts, as the tokenizer would.

        Raises:
            ApiError: 400: empty, too long, not Unicode, or not in the vocabulary.
            QueueFullError: too many wait to be tokenized.
        """

        def read_all() -> list[Prompt]:
            with client_errors(_FIELDS):
                try:
                    return [read_one(i, each) for i, each in enumerate(given)]
                except PromptTooLongError as error:
                    raise context_length_exceeded(
                        name, error, self.reader.max_model_len, room=num_outputs
                    ) from None

        def encode(tokenizer: Tokenizer, label: str, text: str) -> list[int]:
            if limit is None:
                self._check_size(label, len(text))
                return tokenizer.encode(text, add_special_tokens=add_special_tokens)
            try:
                return tokenizer.encode_end(
                    text, limit, most_chars=MOST_CHARS, add_special_tokens=add_special_tokens
                )
            except ValueError as error:
                raise ValueError(f"{label}: {error}, from the beginning of a line") from None

        def read_one(index: int, each: str | list[int]) -> Prompt:
            label = name if len(given) == 1 else f"{name}[{index}]"
            text = each if isinstance(each, str) else None
            if isinstance(each, str):
                tokenizer = self.reader.check_text(
                    label, each, num_outputs=num_outputs, may_be_longer=limit is not None
                )
                each = encode(tokenizer, label, each)
            if limit is not None and len(each) > limit:
                text = None
            return self.reader.check_token_ids(
                label, each, num_outputs=num_outputs, limit=limit, text=text, cache_salt=cache_salt
            )

        if all(isinstance(each, list) for each in given) and sum(map(len, given)) <= _FEW_IDS:
            return read_all()
        return await self._tokenizing.run(read_all, sum(map(len, given)))

    async def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        name: str = "messages",
        add_generation_prompt: bool | None = None,
        continue_final_message: bool | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        """The text of a conversation, by the model's chat template.

        If the template can't render arguments of earlier calls that are not a JSON object, only the
        part of them that parses as one is rendered.

        Args:
            name: of the request's field that the messages come from.

        Raises:
            ApiError: 400: a name is not for requests to set, the conversation is too long, or the
                template refuses or fails.
            QueueFullError: too many wait for the template.
        """
        names = dict(chat_template_kwargs or {})
        if unknown := names.keys() - self._template_kwargs:
            known = ", ".join(sorted(self._template_kwargs))
            raise invalid(
                f"chat_template_kwargs can't set {min(unknown)[:100]!r}; it can set {known}",
                "chat_template_kwargs",
            )
        continues = bool(continue_final_message)
        if add_generation_prompt is None:
            add_generation_prompt = not continues
        render = functools.partial(
            self._render,
            name,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continues,
            tools=tools or None,
            **names,
        )
        try:
            return await render(messages)
        except ApiError:
            if (plainer := with_object_arguments(messages)) is None:
                raise
        return await render(plainer)

    async def _render(
        self, name: str, messages: Sequence[Mapping[str, Any]], **options: Any
    ) -> str:
        render = functools.partial(self.tokenizer.apply_chat_template, messages, **options)
        size = len(msgspec.json.encode((messages, options)))
        try:
            with client_errors(_FIELDS, lambda word: name if word == "messages" else word):
                self._check_size(name, size, "bytes")
                return await self._rendering.run(render, size)
        except ApiError as error:
            raise invalid(error.message, error.param or name) from None

    async def check_params(self, params: Iterable[SamplingParams]) -> None:
        """Tokenize bad words in a thread, so that the engine's own check only looks them up.

        Raises:
            ValueError: as `PromptReader.check_params`.
        """

        def check() -> None:
            for each in params:
                self.reader.check_params(each)

        await self._tokenizing.run(check, 0)

    async def on_thread[T](self, work: Callable[[], T], size: int, name: str) -> T:
        """Run work on a text of `size` characters in a thread and return its result.

        Raises:
            ApiError: 400: the text is too long.
            QueueFullError: too many wait to be tokenized.
        """
        with client_errors((name,)):
            self._check_size(name, size)
        return await self._tokenizing.run(work, size)

    def close(self) -> None:
        """End the threads; what they do is finished first."""
        self._tokenizing.close()
        self._rendering.close()

    def _check_size(self, name: str, size: int, unit: str = "characters") -> None:
        if size > MOST_CHARS:
            raise ValueError(f"{name} has {size} {unit}; at most {MOST_CHARS} are read at once")
