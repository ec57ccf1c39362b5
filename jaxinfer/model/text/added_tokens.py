"""Adds tokens that tokenizer.json lacks and the files beside it name, as in older models."""

import pathlib
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import tokenizers

from jaxinfer.errors import ModelLoadError
from jaxinfer.model.generation_config import read_optional_json
from jaxinfer.model.text.tokenizer_file import FILE

SETTINGS_FILE = "tokenizer_config.json"
_ADDED_FILE = "added_tokens.json"
_SPECIAL_FILE = "special_tokens_map.json"
_SPECIAL_NAMES = (
    *("bos_token", "eos_token", "unk_token", "sep_token"),
    *("pad_token", "cls_token", "mask_token"),
)
_LIST_NAMES = ("extra_special_tokens", "additional_special_tokens")
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized")


def read_settings(directory: pathlib.Path) -> dict[str, Any]:
    """A model's `tokenizer_config.json`, and `special_tokens_map.json` beside an older one.

    Raises:
        ModelLoadError: a file is damaged; one line that names it.
    """
    settings = read_optional_json(directory, SETTINGS_FILE)
    if settings.get("added_tokens_decoder") is not None:
        return settings
    return settings | read_optional_json(directory, _SPECIAL_FILE)


def special_tokens(settings: Mapping[str, Any]) -> dict[str, str]:
    """Text of `bos_token`, `eos_token` and the model's own ones (`image_token`) by name."""
    names = [*_SPECIAL_NAMES, *(name for name in settings if name.endswith("_token"))]
    texts = {name: token_text(settings.get(name)) for name in names}
    return {name: text for name, text in texts.items() if text is not None}


def token_text(token: Any) -> str | None:
    """The text of a token, which the files give as a string or as an object."""
    if isinstance(token, Mapping):
        token = token.get("content")
    return token if isinstance(token, str) and token else None


def add_tokens(
    backend: tokenizers.Tokenizer, directory: pathlib.Path, settings: Mapping[str, Any]
) -> None:
    """Add to a tokenizer what only the files beside it know, under the ids that these give.

    As in transformers, `tokenizer_config.json` decides what an added token is (special, for
    example), and tokens that are named there without an id take the next ones.

    Raises:
        ModelLoadError: a file is damaged, or a token can't have its id; names file and token.
    """
    known = {token.content: token for token in backend.get_added_tokens_decoder().values()}
    if settings.get("added_tokens_decoder") is not None:
        file = directory / SETTINGS_FILE
        tokens = _of_decoder(settings["added_tokens_decoder"], file)
    else:
        file = directory / _ADDED_FILE
        tokens = _of_added_tokens_file(directory, known, frozenset(_all_special(settings)))
    named = frozenset(special_tokens(settings).values())
    without_id = {text for text in tokens if backend.token_to_id(text) is None}
    changed = []
    for text, (_, token) in sorted(tokens.items(), key=lambda item: item[1][0]):
        if repr(token) != repr(known.get(text)):
            token.special = token.special or text in named
            changed.append(token)
    backend.add_tokens(changed)
    for text, (token_id, _) in tokens.items():
        if text in without_id and (found := backend.token_to_id(text)) != token_id:
            raise ModelLoadError(
                f"{file}: the added token {text!r:.80} has id {token_id}, and after the tokens of "
                f"{FILE} it would have {found}; save the tokenizer anew"
            )
    known_texts = known.keys() | tokens.keys()
    backend.add_special_tokens([t for t in _all_special(settings) if t not in known_texts])


def _of_decoder(given: Any, file: pathlib.Path) -> dict[str, tuple[int, tokenizers.AddedToken]]:
    """Id and token by text."""
    if not isinstance(given, Mapping):
        raise ModelLoadError(f"{file}: added_tokens_decoder must map token ids to tokens")
    tokens = {}
    for key, fields in given.items():
        text = token_text(fields)
        if text is None or not isinstance(fields, Mapping) or not _is_id(key):
            raise ModelLoadError(
                f"{file}: added_tokens_decoder must map token ids to tokens, got {key!r:.40}"
            )
        flags = {name: fields[name] for name in _FLAGS if isinstance(fields.get(name), bool)}
        token = tokenizers.AddedToken(text, special=fields.get("special") is True, **flags)
        tokens[text] = int(key), token
    return tokens


def _of_added_tokens_file(
    directory: pathlib.Path, known: Collection[str], special: Collection[str]
) -> dict[str, tuple[int, tokenizers.AddedToken]]:
    """Id and token by text, without those that are known."""
    tokens = {}
    for text, token_id in read_optional_json(directory, _ADDED_FILE).items():
        if not text or isinstance(token_id, bool) or not isinstance(token_id, int) or token_id < 0:
            raise ModelLoadError(
                f"{directory / _ADDED_FILE}: must map tokens to their ids, got {text!r:.80}"
            )
        if text not in known:
            is_special = text in special
            token = tokenizers.AddedToken(text, special=is_special, normalized=not is_special)
            tokens[text] = token_id, token
    return tokens


def _all_special(settings: Mapping[str, Any]) -> Iterable[str]:
    """Texts of all tokens that the settings name as special, each once."""
    listed = [token for name in _LIST_NAMES for token in _items(settings.get(name))]
    texts = [*special_tokens(settings).values(), *map(token_text, listed)]
    return dict.fromkeys(text for text in texts if text is not None)


def _items(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, list) else ()


def _is_id(key: str) -> bool:
    return key.isascii() and key.isdigit() and len(key) < 10
