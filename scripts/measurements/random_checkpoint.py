"""Writes a model directory with random weights of a published shape and a tokenizer of its size.

Text costs a server what it costs with a real vocabulary: each of the 151,643 tokens is a text of
one to four characters, reached by byte-level BPE merges.
"""

import itertools
import json
import string
from pathlib import Path
from typing import Any

_ASSETS = Path(__file__).parents[2] / "jaxinfer" / "assets" / "model"
_NUM_ORDINARY = 151_643
_COPIED = ("tokenizer_config.json", "chat_template.jinja", "generation_config.json")


def write_random_checkpoint(model_shape: str, directory: Path) -> None:
    """Write weights, config and tokenizer to a directory that `LLM` and `serve` take.

    Args:
        model_shape: see `jaxinfer.planning.named_shapes`.
        directory: created if needed.
    """
    from jaxinfer.measure.random_weights import random_weights
    from jaxinfer.model.checkpoint.weights import save_params

    weights = random_weights(model_shape, {})
    save_params(weights["params"], weights["config"], directory)
    for name in _COPIED:
        (directory / name).write_bytes((_ASSETS / name).read_bytes())
    tokenizer = json.loads((_ASSETS / "tokenizer.json").read_text())
    (directory / "tokenizer.json").write_text(json.dumps(_enlarged(tokenizer)))


def _enlarged(tokenizer: dict[str, Any]) -> dict[str, Any]:
    """The tokenizer with the 256 bytes, texts of two to four letters, and its special tokens."""
    bytes_of = [text for text in tokenizer["model"]["vocab"] if len(text) == 1]
    texts = itertools.chain.from_iterable(
        itertools.product(string.ascii_lowercase, repeat=length) for length in (2, 3, 4)
    )
    words = ["".join(letters) for letters in itertools.islice(texts, _NUM_ORDINARY - len(bytes_of))]
    vocab = {text: number for number, text in enumerate([*bytes_of, *words])}
    merges = [[word[:-1], word[-1]] for word in words]
    special = [
        {**token, "id": _NUM_ORDINARY + number}
        for number, token in enumerate(tokenizer["added_tokens"])
    ]
    model = {**tokenizer["model"], "vocab": vocab, "merges": merges}
    return {**tokenizer, "model": model, "added_tokens": special}
