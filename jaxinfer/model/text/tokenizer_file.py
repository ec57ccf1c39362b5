"""Reads tokenizer.json, without saved settings that would cut, pad or randomly split texts."""

import pathlib

import tokenizers

from jaxinfer.errors import ModelLoadError
from jaxinfer.model.checkpoint.directory_files import has_file, read_text
from jaxinfer.model.text.token_bytes import TokenBytes

FILE = "tokenizer.json"
_SENTENCEPIECE_FILE = "tokenizer.model"
_MAX_BYTES = 1 << 28

# Every byte that UTF-8 has: characters of one and two bytes, and first bytes of longer ones.
_LONGER = [*range(0x800, 0xD800, 0x400), 0xE000, 0xF000, *range(0x10000, 0x110000, 1 << 18)]
_ALL_BYTES = "".join(map(chr, [*range(0x800), *_LONGER]))


def read_tokenizer_file(directory: pathlib.Path) -> tokenizers.Tokenizer:
    """The tokenizer of a model directory, as its `tokenizer.json` has it.

    Raises:
        ModelLoadError: the file is missing or damaged; one line that names it.
    """
    file = directory / FILE
    if not has_file(directory, FILE):
        if has_file(directory, _SENTENCEPIECE_FILE):
            raise ModelLoadError(
                f"{directory / _SENTENCEPIECE_FILE}: is read only as {FILE}; write that beside it "
                "by transformers: AutoTokenizer.from_pretrained(directory)"
                ".save_pretrained(directory)"
            )
        raise ModelLoadError(f"{file}: no such file; the model directory needs a tokenizer.json")
    text = read_text(directory, FILE, _MAX_BYTES)
    try:
        return tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # the library raises bare Exception for damaged files
        raise ModelLoadError(f"{file}: not a tokenizer: {_first_line(error)}") from None


def whole_texts(
    backend: tokenizers.Tokenizer, kind: TokenBytes, origin: str
) -> tokenizers.Tokenizer:
    """The same tokenizer, which makes the model's own tokens of every text, and of all of it.

    Truncation, padding and dropout are settings of a training run that was saved with them; a copy
    without them is made where there are any.

    Raises:
        ModelLoadError: there are texts that it can't encode.
    """
    model = backend.model
    if model.unk_token is None:
        lost = kind.lost_bytes(model)
        if lost:
            raise ModelLoadError(
                f"{origin}: the tokenizer lacks {lost} of the 256 bytes and has no unknown token; "
                "text with them would be lost"
            )
    if model.dropout or backend.truncation is not None or backend.padding is not None:
        backend = tokenizers.Tokenizer.from_str(backend.to_str())
        backend.no_truncation()
        backend.no_padding()
        backend.model.dropout = None
    try:
        backend.encode(_ALL_BYTES)
    except Exception as error:  # a bare one, too
        raise ModelLoadError(f"{origin}: can't encode every text: {_first_line(error)}") from None
    return backend


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
