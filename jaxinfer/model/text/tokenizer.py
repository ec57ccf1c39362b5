"""The tokenizer: text to token ids and back, from a model directory's files, not transformers."""

import hashlib
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tokenizers

from jaxinfer.errors import ModelLoadError
from jaxinfer.model.generation_config import GenerationConfig, read_json
from jaxinfer.model.text.chat_template import ChatTemplate
from jaxinfer.model.text.token_bounds import TokenBound

_MAX_TOKENIZER_BYTES = 1 << 28
_MAX_TEMPLATE_BYTES = 1 << 20
_SPECIAL_NAMES = ("bos_token", "eos_token", "pad_token", "unk_token")


def _byte_alphabet() -> dict[str, int]:
    """Character to byte for byte-level BPE: printable Latin-1 stands for itself, the rest follows.

    The mapping of GPT-2 (Radford et al., 2019), which Qwen's vocabulary is written in.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update({chr(256 + i): byte for i, byte in enumerate(others)})
    return alphabet


class Tokenizer:
    """A byte-level BPE tokenizer with its chat template and its model's sampling defaults.

    Args:
        backend: the `tokenizers` object.
        eos_token_ids: ids that end an answer.
        chat_template: template text by name ("default", perhaps "tool_use"); may be empty.
        special_tokens: `bos_token`, `eos_token`, …: their text, for the chat template.
        generation: what the model's authors recommend for sampling.
        origin: the directory it came from, named in error messages.

    Raises:
        ModelLoadError: the tokenizer is not byte-level BPE.
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
        decoder = backend.decoder
        if "ByteLevel" not in (repr(decoder) if decoder is not None else ""):
            raise ModelLoadError(f"{origin}: not a byte-level BPE tokenizer, which Qwen3 has")
        self._backend = backend
        self._alphabet = _byte_alphabet()
        self._bound = TokenBound(backend, self._alphabet)
        self._bytes: dict[int, bytes] = {}
        self._texts: dict[int, str] = {}
        added = backend.get_added_tokens_decoder()
        self._special_ids = frozenset(i for i, token in added.items() if token.special)
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

        Used if present: `tokenizer_config.json`, `chat_template.jinja`, `generation_config.json`.

        Raises:
            ModelLoadError: a file is missing or damaged; one line that names it.
        """
        directory = pathlib.Path(path)
        backend = _load_backend(directory / "tokenizer.json")
        settings = read_json(directory / "tokenizer_config.json")
        generation = GenerationConfig.from_directory(directory)
        special = {name: _token_text(settings.get(name)) for name in _SPECIAL_NAMES}
        special_tokens = {name: text for name, text in special.items() if text is not None}
        eos = list(generation.eos_token_ids)
        eos_text = special_tokens.get("eos_token")
        if eos_text is not None and (own := backend.token_to_id(eos_text)) is not None:
            eos.append(own)
        return cls(
            backend,
            eos_token_ids=eos,
            chat_template=_read_templates(directory, settings),
            special_tokens=special_tokens,
            generation=generation,
            origin=str(directory),
        )

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text; special tokens written out in it become their ids."""
        return self._backend.encode(text, add_special_tokens=add_special_tokens).ids

    def encode_batch(
        self, texts: Sequence[str], *, add_special_tokens: bool = True
    ) -> list[list[int]]:
        """Token ids of many texts, on several threads."""
        encodings = self._backend.encode_batch(list(texts), add_special_tokens=add_special_tokens)
        return [encoding.ids for encoding in encodings]

    def least_tokens(self, text: str) -> int:
        """A lower bound of a text's number of tokens; much quicker than `encode`."""
        return self._bound.least_tokens(text)

    def decode(self, token_ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """The text of token ids; bytes that are not UTF-8 become U+FFFD."""
        data = b"".join(
            self.token_bytes(token_id)
            for token_id in token_ids
            if not (skip_special_tokens and token_id in self._special_ids)
        )
        return data.decode("utf-8", errors="replace")

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
        token = self._backend.id_to_token(token_id) if token_id >= 0 else None
        self._bytes[token_id] = data = self._to_bytes(token or "")
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

    def to_json(self) -> str:
        """What its `tokenizer.json` says, for libraries that read such files."""
        return self._backend.to_str()

    def fingerprint(self) -> str:
        """A hash over everything that decides ids and text."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:16]

    def token_to_id(self, token: str) -> int | None:
        """The id of a token given by its vocabulary spelling, or None."""
        return self._backend.token_to_id(token)

    @property
    def has_chat_template(self) -> bool:
        """Whether `apply_chat_template` can work without a template of the caller's."""
        return bool(self._templates)

    @property
    def chat_template(self) -> str | None:
        """The text of the model's default template, if it has one."""
        return self._choose_template(None, has_tools=False).source if self._templates else None

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
            messages: see `ChatTemplate.render`.
            add_generation_prompt: see there.
            continue_final_message: see there.
            enable_thinking: see there.
            tools: see there; with them a template named "tool_use" is preferred.
            chat_template: a template's text to use in place of the model's.
            tokenize: return token ids instead of text.
            variables: further names for the template.

        Raises:
            ValueError: the model has no chat template, or the template refuses or fails.
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
        if given is not None:
            # The last one is kept, because a caller's template is used again and again.
            if self._given_template is None or self._given_template.source != given:
                if self._given_template is not None:
                    self._given_template.close()
                self._given_template = ChatTemplate(given, self._special_tokens, "the caller")
            return self._given_template
        if not self._templates:
            raise ValueError(
                f"{self._origin} has no chat template (chat_template.jinja); give one, or use "
                "generate() with a prompt that is already formatted"
            )
        name = "tool_use" if has_tools and "tool_use" in self._templates else "default"
        return self._templates.get(name) or next(iter(self._templates.values()))

    def _to_bytes(self, token: str) -> bytes:
        # An added token with a character outside the byte alphabet stands for its own text.
        try:
            return bytes([self._alphabet[char] for char in token])
        except KeyError:
            return token.encode("utf-8")


def _load_backend(path: pathlib.Path) -> tokenizers.Tokenizer:
    if not path.is_file():
        raise ModelLoadError(f"{path}: no such file; the model directory needs a tokenizer.json")
    if path.stat().st_size > _MAX_TOKENIZER_BYTES:
        raise ModelLoadError(f"{path}: larger than {_MAX_TOKENIZER_BYTES >> 20} MiB")
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception for damaged files
        raise ModelLoadError(f"{path}: not a tokenizer: {_first_line(error)}") from None


def _read_templates(directory: pathlib.Path, settings: Mapping[str, Any]) -> dict[str, str]:
    path = directory / "chat_template.jinja"
    if path.is_file():
        if path.stat().st_size > _MAX_TEMPLATE_BYTES:
            raise ModelLoadError(f"{path}: larger than {_MAX_TEMPLATE_BYTES >> 10} KiB")
        try:
            return {"default": path.read_text(encoding="utf-8")}
        except UnicodeDecodeError as error:
            raise ModelLoadError(f"{path}: not UTF-8 text: {error.reason}") from None
    given = settings.get("chat_template")
    if isinstance(given, str):
        return {"default": given}
    if isinstance(given, list):
        return {
            str(entry["name"]): str(entry["template"])
            for entry in given
            if isinstance(entry, dict) and {"name", "template"} <= entry.keys()
        }
    return {}


def _token_text(token: Any) -> str | None:
    """The text of a special token, which the file gives as a string or as an object."""
    if isinstance(token, Mapping):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
