"""Reads tokenizer.json, without saved settings that would cut, pad or randomly split texts."""

import pathlib

import tokenizers
from tokenizers import models

from jaxinfer.errors import ModelLoadError
from jaxinfer.model.checkpoint.directory_files import has_file, read_text

FILE = "tokenizer.json"
_MAX_BYTES = 1 << 28

# Every byte that UTF-8 has: characters of one and two bytes, and first bytes of longer ones.
_LONGER = [*range(0x800, 0xD800, 0x400), 0xE000, 0xF000, *range(0x10000, 0x110000, 1 << 18)]
_ALL_BYTES = "".join(map(chr, [*range(0x800), *_LONGER]))


def byte_alphabet() -> dict[str, int]:
    """Character to byte for byte-level BPE: printable Latin-1 stands for itself, the rest follows.

    The mapping of GPT-2 (Radford et al., 2019), which Qwen's vocabulary is written in.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update({chr(256 + i): byte for i, byte in enumerate(others)})
    return alphabet


def read_tokenizer_file(directory: pathlib.Path) -> tokenizers.Tokenizer:
    """The tokenizer of a model directory, as its `tokenizer.json` has it.

    Raises:
        ModelLoadError: the file is missing or damaged; one line that names it.
    """
    file = directory / FILE
    if not has_file(directory, FILE):
        raise ModelLoadError(f"{file}: no such file; the model directory needs a tokenizer.json")
    text = read_text(directory, FILE, _MAX_BYTES)
    try:
        return tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # the library raises bare Exception for damaged files
        raise ModelLoadError(f"{file}: not a tokenizer: {_first_line(error)}") from None


def whole_texts(backend: tokenizers.Tokenizer, origin: str) -> tokenizers.Tokenizer:
    """The same tokenizer, which makes the model's own tokens of every text, and of all of it.

    Truncation, padding and dropout are settings of a training run that was saved with them; a copy
    without them is made where there are any.

    Args:
        backend: stays as it is.
        origin: where it came from, for messages.

    Raises:
        ModelLoadError: it is not byte-level BPE, or there are texts that it can't encode.
    """
    model = backend.model
    if not isinstance(model, models.BPE) or "ByteLevel" not in repr(backend.decoder):
        raise ModelLoadError(f"{origin}: not a byte-level BPE tokenizer, the only kind read")
    if model.unk_token is None:
        lost = sum(model.token_to_id(char) is None for char in byte_alphabet())
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
