"""The tokenizer: text to token ids and back, from a model directory's files, not transformers."""

import hashlib
import pathlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tokenizers

from jaxinfer.model.generation_config import GenerationConfig
from jaxinfer.model.text.added_tokens import add_tokens, read_settings, special_tokens
from jaxinfer.model.text.chat_template import ChatTemplate
from jaxinfer.model.text.template_files import DEFAULT, TOOL_USE, read_templates
from jaxinfer.model.text.text_decoder import FirstSpaceDecoder, TextDecoder, plain_decoder
from jaxinfer.model.text.text_ends import TextEnds
from jaxinfer.model.text.token_bytes import token_bytes_of
from jaxinfer.model.text.tokenizer_file import read_tokenizer_file, whole_texts

_NAME = re.compile(r"[\w.-]+")
"""What is the name of a template rather than the text of one."""

_LONG_CHARS = 1 << 14  # tokenized in milliseconds


class Tokenizer:
    """A BPE tokenizer with its chat template and its model's sampling defaults.

    It is byte-level, or SentencePiece-like: see `TokenBytes`.

    Args:
        backend: the `tokenizers` object; truncation, padding and dropout of it are left out.
        eos_token_ids: ids that end an answer.
        chat_template: template text by name ("default", perhaps "tool_use" and others); may be
            empty.
        special_tokens: `bos_token`, `eos_token`, …: their text, for the chat template.
        generation: what the model's authors recommend for sampling.
        origin: the directory it came from, named in error messages.

    Raises:
        ModelLoadError: the tokenizer is of another kind, or can't encode every text.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        eos_token_ids: Sequence[int] = (),
        chat_template: Mapping[str, str] | None = None,
        special_tokens: Mapping[str, str] | None = None,
        generation: GenerationConfig | None = None,
        origin: str = "tokenizer",
    ):
        self._kind = token_bytes_of(backend, origin)
        self._backend = backend = whole_texts(backend, self._kind, origin)
        self._following: tokenizers.Tokenizer | None = None
        self._ends: TextEnds | None = None
        self._bound = self._kind.bound(backend)
        self._bytes: dict[int, bytes] = {}
        self._texts: dict[int, str] = {}
        added = backend.get_added_tokens_decoder()
        self._special_ids = frozenset(i for i, token in added.items() if token.special)
        self._added_texts = {i: token.content for i, token in added.items()}
        self._origin = origin
        self._special_tokens = dict(special_tokens or {})
        self._templates = {
            name: ChatTemplate(text, self._special_tokens, origin)
            for name, text in (chat_template or {}).items()
        }
        self._given_template: ChatTemplate | None = None
        self.vocab_size = 1 + max(backend.get_vocab(with_added_tokens=True).values(), default=-1)
        """One more than the largest id that the tokenizer can produce."""
        self.eos_token_ids = tuple(dict.fromkeys(eos_token_ids))
        """Ids that end an answer, each once."""
        self.generation = generation or GenerationConfig()
        """What the model's `generation_config.json` says."""

    @classmethod
    def from_directory(cls, path: str | pathlib.Path) -> "Tokenizer":
        """Read `tokenizer.json` and the files beside it.

        Used if present: `tokenizer_config.json`, `generation_config.json`, `chat_template.jinja`,
        `additional_chat_templates`, and of older models `added_tokens.json` and
        `special_tokens_map.json`.

        Raises:
            ModelLoadError: a file is missing or damaged; one line that names it.
        """
        directory = pathlib.Path(path)
        backend = read_tokenizer_file(directory)
        settings = read_settings(directory)
        add_tokens(backend, directory, settings)
        generation = GenerationConfig.from_directory(directory)
        special = special_tokens(settings)
        eos = list(generation.eos_token_ids)
        eos_text = special.get("eos_token")
        if eos_text is not None and (own := backend.token_to_id(eos_text)) is not None:
            eos.append(own)
        return cls(
            backend,
            eos_token_ids=eos,
            chat_template=read_templates(directory, settings),
            special_tokens=special,
            generation=generation,
            origin=str(directory),
        )

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text; special tokens written out in it become their ids.

        Other threads run meanwhile, if the text is long.
        """
        if len(text) > _LONG_CHARS:
            return self.encode_batch([text], add_special_tokens=add_special_tokens)[0]
        return self._backend.encode(text, add_special_tokens=add_special_tokens).ids

    def encode_end(
        self,
        text: str,
        count: int,
        *,
        most_chars: int | None = None,
        add_special_tokens: bool = True,
    ) -> list[int]:
        """The last token ids of a text, `count` or more, unless it has fewer.

        The same as those of the whole text, of which only an end is tokenized if it is long.

        Args:
            text: the text.
            count: tokens that are needed.
            most_chars: longer ends are not tokenized; None for any.
            add_special_tokens: as in `encode`.

        Raises:
            ValueError: no end within `most_chars` has so many tokens.
        """
        if self._ends is None:
            self._ends = TextEnds(self._backend)
        added = self._backend.num_special_tokens_to_add(False) if add_special_tokens else 0
        for start in self._ends.starts(text, count):
            if most_chars is not None and len(text) - start > most_chars:
                break
            ids = self.encode(text[start:], add_special_tokens=add_special_tokens)
            if len(ids) >= count + added or start == 0:
                return ids
        raise ValueError(f"it has {len(text)} characters; at most {most_chars} are tokenized")

    def encode_batch(
        self, texts: Sequence[str], *, add_special_tokens: bool = True
    ) -> list[list[int]]:
        """Token ids of many texts, on several threads."""
        encodings = self._backend.encode_batch_fast(
            list(texts), add_special_tokens=add_special_tokens
        )
        return [encoding.ids for encoding in encodings]

    def encode_following(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of short texts that each go on from another text.

        No special token is added, and no space, which SentencePiece puts before a text.
        """
        if self._following is None:
            self._following = self._kind.following(self._backend)
        return [self._following.encode(text, add_special_tokens=False).ids for text in texts]

    def least_tokens(self, text: str) -> int:
        """A lower bound of a text's number of tokens; much quicker than `encode`."""
        return self._bound.least_tokens(text)

    def decode(self, token_ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """The text of token ids; bytes that are not UTF-8 become U+FFFD.

        It is a whole text: where SentencePiece puts a space before a text, that is left out.
        """
        data = b"".join(
            self.token_bytes(token_id)
            for token_id in token_ids
            if not (skip_special_tokens and token_id in self._special_ids)
        )
        if self._kind.drops_first_space:
            data = data.removeprefix(b" ")
        return data.decode("utf-8", errors="replace")

    def text_decoder(
        self, preceding: Iterable[int] = (), *, skip_special_tokens: bool = True
    ) -> TextDecoder:
        """Makes text of the bytes of tokens, as they come; see `token_bytes`.

        The text and what precedes it are together what `decode` makes of all tokens: where
        SentencePiece puts a space before a text, the first token to have text lacks it, no other.

        Args:
            preceding: tokens before the text, a prompt's.
            skip_special_tokens: special tokens have no text.
        """
        if self._kind.drops_first_space and not any(
            self.token_bytes(token_id)
            for token_id in preceding
            if not (skip_special_tokens and token_id in self._special_ids)
        ):
            return FirstSpaceDecoder()
        return plain_decoder()

    def batch_decode(
        self, sequences: Iterable[Iterable[int]], *, skip_special_tokens: bool = True
    ) -> list[str]:
        """`decode` of each."""
        return [self.decode(ids, skip_special_tokens=skip_special_tokens) for ids in sequences]

    def convert_ids_to_tokens(self, token_ids: int | Iterable[int]) -> Any:
        """The vocabulary's spelling of an id, or a list of them; None beyond the vocabulary."""
        if isinstance(token_ids, int):
            return self._backend.id_to_token(token_ids) if token_ids >= 0 else None
        return [self.convert_ids_to_tokens(int(token_id)) for token_id in token_ids]

    def __len__(self) -> int:
        """Tokens in the vocabulary, added ones included."""
        return self._backend.get_vocab_size(with_added_tokens=True)

    @property
    def eos_token_id(self) -> int | None:
        """The first of `eos_token_ids`."""
        return next(iter(self.eos_token_ids), None)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token adds to the text; empty for an id beyond the vocabulary."""
        known = self._bytes.get(token_id)
        if known is not None:
            return known
        text = self._added_texts.get(token_id)
        if text is not None:
            data = self._kind.of_added(text)
        else:
            token = self._backend.id_to_token(token_id) if token_id >= 0 else None
            data = self._kind.of(token or "")
        self._bytes[token_id] = data
        return data

    def token_text(self, token_id: int) -> str:
        """`token_bytes` decoded by themselves; bytes that are not UTF-8 become U+FFFD."""
        known = self._texts.get(token_id)
        if known is None:
            known = self.token_bytes(token_id).decode("utf-8", errors="replace")
            self._texts[token_id] = known
        return known

    def is_special(self, token_id: int) -> bool:
        """Whether `skip_special_tokens` leaves this token out of the text."""
        return token_id in self._special_ids

    def to_json(self, *, following: bool = False) -> str:
        """What its `tokenizer.json` says, for libraries that read such files.

        Args:
            following: of a tokenizer of texts that go on from others; see `encode_following`.
        """
        return (self._kind.following(self._backend) if following else self._backend).to_str()

    def fingerprint(self) -> str:
        """A hash over everything that decides ids and text."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:16]

    def token_to_id(self, token: str) -> int | None:
        """The id of a token given by its vocabulary spelling, or None."""
        return self._backend.token_to_id(token)

    @property
    def chat_template(self) -> str | None:
        """The text of the model's default template, if it has one."""
        default = self._templates.get(DEFAULT)
        return None if default is None else default.source

    @property
    def tool_chat_template(self) -> str | None:
        """The text of the template that conversations with tools take, if there is one."""
        own = self._templates.get(TOOL_USE) or self._templates.get(DEFAULT)
        return None if own is None else own.source

    @property
    def special_tokens(self) -> dict[str, str]:
        """Text of `bos_token`, `eos_token`, … if the tokenizer has them."""
        return dict(self._special_tokens)

    def apply_chat_template(
        self,
        messages: Sequence[Any],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        enable_thinking: bool | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template: str | None = None,
        tokenize: bool = False,
        **variables: Any,
    ) -> Any:
        """The prompt of a conversation, as text; see `ChatTemplate.render`.

        Args:
            tools: see there; with them a template named "tool_use" is preferred.
            chat_template: the name of one of the model's templates, or a template's text to use
                in place of them.
            tokenize: return token ids instead of text.

        Raises:
            ValueError: the model has no chat template, none of that name or no default one, or the
                template refuses or fails.
            TypeError: messages or tools are not plain JSON data.
        """
        template = self._choose_template(chat_template, has_tools=bool(tools))
        text = template.render(
            messages,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            enable_thinking=enable_thinking,
            tools=tools,
            **variables,
        )
        # The template has written the special tokens already.
        return self.encode(text, add_special_tokens=False) if tokenize else text

    def close(self) -> None:
        """End the chat template's helper process; safe to call again."""
        for template in self._templates.values():
            template.close()
        if self._given_template is not None:
            self._given_template.close()

    def _choose_template(self, given: str | None, *, has_tools: bool) -> ChatTemplate:
        if given is None:
            return self._own_template(has_tools=has_tools)
        if (named := self._templates.get(given)) is not None:
            return named
        if self._templates and _NAME.fullmatch(given):
            raise ValueError(f"{self._origin} has no chat template {given!r:.80}; {self._names()}")
        # The last one is kept, because a caller's template is used again and again.
        if self._given_template is None or self._given_template.source != given:
            if self._given_template is not None:
                self._given_template.close()
            self._given_template = ChatTemplate(given, self._special_tokens, "the caller")
        return self._given_template

    def _own_template(self, *, has_tools: bool) -> ChatTemplate:
        if not self._templates:
            raise ValueError(
                f"{self._origin} has no chat template (chat_template.jinja); give one, or use "
                "generate() with a prompt that is already formatted"
            )
        name = TOOL_USE if has_tools and TOOL_USE in self._templates else DEFAULT
        if name not in self._templates:
            raise ValueError(
                f"{self._origin} has several chat templates and none that is the default; choose "
                f"one by chat_template=name: {self._names()}"
            )
        return self._templates[name]

    def _names(self) -> str:
        return f"it has {', '.join(sorted(self._templates)):.200}"
