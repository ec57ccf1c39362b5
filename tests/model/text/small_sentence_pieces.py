"""Builds small SentencePiece-like BPE tokenizers, in the forms that model families ship."""

import functools
import json

import tokenizers
from tokenizers import (
    AddedToken,
    Regex,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from tests.model.text.small_tokenizer import TEXT

CONTROL = ["<unk>", "<s>", "</s>"]
FORMS = ["llama2", "mistral", "phi3", "gemma", "converted"]


@functools.cache
def build_pieces(form: str) -> tokenizers.Tokenizer:
    """A tokenizer trained on TEXT, which adds `<s>`.

    Args:
        form: "llama2" (a normalizer puts a space before each text between added tokens), "mistral"
            (a pre-tokenizer, before the first one), "phi3" (as Llama 2, with added tokens that take
            in what follows them), "gemma" (no such space, added tokens of spaces), "converted" (as
            transformers makes it of SentencePiece's own file).
    """
    vocabulary, merges = _trained()
    model = models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    backend = tokenizers.Tokenizer(model)
    spaces = normalizers.Replace(" ", "▁")
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if form == "gemma":
        backend.normalizer = spaces
        backend.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    else:
        steps.append(decoders.Strip(" ", 1, 0))
    if form in ("llama2", "phi3"):
        backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), spaces])
    elif form == "mistral":
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    elif form == "converted":
        twice = normalizers.Replace(Regex(r"\A▁"), "▁▁")
        backend.normalizer = normalizers.Sequence([spaces, twice])
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=False)
    backend.decoder = decoders.Sequence(steps)
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", vocabulary["<s>"])]
    )
    backend.add_special_tokens(CONTROL)
    if form == "phi3":
        backend.add_special_tokens([AddedToken("<|end|>", rstrip=True, normalized=False)])
    if form == "gemma":
        backend.add_tokens([AddedToken("▁▁", special=False, normalized=False)])
    return backend


@functools.cache
def _trained() -> tuple[dict[str, int], list[tuple[str, str]]]:
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    trainer = trainers.BpeTrainer(vocab_size=300, limit_alphabet=60, show_progress=False)
    backend.train_from_iterator(TEXT, trainer)
    model = json.loads(backend.to_str())["model"]
    pieces = sorted(model["vocab"], key=model["vocab"].__getitem__)
    tokens = [*CONTROL, *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    return {token: i for i, token in enumerate(tokens)}, [tuple(m) for m in model["merges"]]
