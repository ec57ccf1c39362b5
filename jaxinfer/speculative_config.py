"""How an engine drafts tokens: the settings of speculative decoding, by vLLM's names."""

import dataclasses
import difflib
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Literal, get_args

from jaxinfer.checks import check_integer, check_strings, show

SpeculativeMethod = Literal["ngram", "suffix", "eagle3", "dflash"]

_MOST_DRAFTS = 15
_LONGEST_LOOKUP = 64
_MOST_FILES, _LONGEST_PATH = 1024, 4096
_MOST_CORPUS_TOKENS = 1 << 20
_OTHER_WEIGHTS = ("draft_model", "eagle", "medusa", "mlp_speculator", "mtp", "dspark")
_DRAFTS = {"ngram": 7, "suffix": 7, "eagle3": 3, "dflash": _MOST_DRAFTS}
"""The most drafts of a row by default; a head may have fewer."""
_HEADS = ("eagle3", "dflash")
"""Methods with a draft head."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpeculativeConfig:
    """Drafts of the tokens to come, which a decode step verifies all at once.

    The answer is the one that there would be without, whatever is drafted: only its speed changes.

    Attributes:
        method: "ngram" looks a sequence's latest tokens up in the sequence; "suffix" also in
            answers that the engine gave before and in `corpus`, and drafts no more than it found;
            "eagle3" and "dflash" ask a draft head of this kind that was trained for the model.
        model: directory or hub id of the draft head, for methods with one, which need it; "bundled"
            is the head of the bundled model.
        revision: branch, tag or commit of a `model` on the hub; None is its main branch.
        num_speculative_tokens: most drafts of a row in a step, 1 to 15; None is 7, or 3 of
            "eagle3", or of "dflash" 15 or as many as a block of the head has. Read it from
            `num_drafts`.
        prompt_lookup_max: most of the latest tokens that "ngram" looks up; None is
            `prompt_lookup_min`, or 5.
        prompt_lookup_min: fewest that must be found; None is `prompt_lookup_max`, or 5.
        suffix_decoding_max_tree_depth: most of the latest tokens that "suffix" looks up.
        corpus: paths of text files that answers may go on like, for "suffix".
        corpus_tokens: tokens that "suffix" keeps of the corpus and earlier answers, 4 bytes each on
            every device; the latest stay. 0 keeps none, else at least 2. None is 262,144.

    Raises:
        TypeError: a field has the wrong type, or is not known; names it.
        ValueError: a field is out of its range, or means nothing for the method.
    """

    method: SpeculativeMethod
    model: str | None = None
    revision: str | None = None
    num_speculative_tokens: int | None = None
    prompt_lookup_max: int | None = None
    prompt_lookup_min: int | None = None
    suffix_decoding_max_tree_depth: int | None = None
    corpus: tuple[str, ...] = ()
    corpus_tokens: int | None = None

    def __post_init__(self) -> None:
        """Check all fields."""
        _check_method(self.method)
        check_integer(
            "speculative_config: num_speculative_tokens", self.num_drafts, 1, _MOST_DRAFTS
        )
        self._check_model()
        self._check_revision()
        self._check("prompt_lookup_max", 1, _LONGEST_LOOKUP, only="ngram")
        self._check("prompt_lookup_min", 1, _LONGEST_LOOKUP, only="ngram")
        self._check("suffix_decoding_max_tree_depth", 1, _LONGEST_LOOKUP, only="suffix")
        if self.corpus_tokens != 0:
            self._check("corpus_tokens", 2, _MOST_CORPUS_TOKENS, only="suffix")
        corpus = check_strings(
            "speculative_config: corpus", self.corpus, _MOST_FILES, _LONGEST_PATH
        )
        object.__setattr__(self, "corpus", corpus)
        if self.corpus and self.method != "suffix":
            raise ValueError(
                f"speculative_config: corpus means nothing for {self.method!r}; write 'suffix'"
            )
        if corpus and self.corpus_tokens == 0:
            raise ValueError("speculative_config: corpus needs room; leave corpus_tokens=0 out")
        for path in corpus:
            if not Path(path).is_file():
                raise ValueError(f"speculative_config: corpus: no file {path!r}")
        if self.shortest > self.longest:
            raise ValueError(
                f"speculative_config: prompt_lookup_min ({self.shortest}) must be at most "
                f"prompt_lookup_max ({self.longest})"
            )

    @classmethod
    def of(cls, value: object) -> "SpeculativeConfig":
        """A configuration as it is, or from a dictionary of its fields.

        Raises:
            TypeError: it is neither, or a field is not known.
            ValueError: as for the constructor.
        """
        if isinstance(value, cls):
            return value
        if not isinstance(value, Mapping):
            raise TypeError(
                "speculative_config must be a dict such as {'method': 'ngram'}, got "
                f"{show(value)}"
            )
        if "method" in value or "model" in value:
            _check_method(value.get("method", "draft_model"))  # which vLLM takes it for
        known = [field.name for field in dataclasses.fields(cls)]
        for name in value:
            if name not in known:
                nearest = difflib.get_close_matches(str(name), known, n=1)
                hint = f"did you mean {nearest[0]!r}?" if nearest else f"it has {', '.join(known)}"
                raise TypeError(f"speculative_config has no {show(name)}; {hint}")
        if "method" not in value:
            raise TypeError(f"speculative_config needs a method: {_either(_DRAFTS)}")
        return cls(**value)

    @property
    def num_drafts(self) -> int:
        """Most drafts of a row in a step, if a head can draft as many."""
        if self.num_speculative_tokens is not None:
            return self.num_speculative_tokens
        return _DRAFTS[self.method]

    @property
    def longest(self) -> int:
        """Most of the latest tokens that are looked up."""
        if self.method == "suffix":
            return self.suffix_decoding_max_tree_depth or 24
        return self.prompt_lookup_max or self.prompt_lookup_min or 5

    @property
    def shortest(self) -> int:
        """Fewest of them that must be found."""
        if self.method == "suffix":
            return 1
        return self.prompt_lookup_min or self.prompt_lookup_max or 5

    @property
    def corpus_size(self) -> int:
        """Tokens of the corpus on every device."""
        if self.method != "suffix":
            return 0
        return 1 << 18 if self.corpus_tokens is None else self.corpus_tokens

    def _check_model(self) -> None:
        if self.method in _HEADS and self.model is None:
            raise ValueError(
                f"speculative_config: method {self.method!r} needs model, the directory or hub id "
                "of a draft head that was trained for this model"
            )
        if self.model is None:
            return
        if isinstance(self.model, os.PathLike):
            object.__setattr__(self, "model", os.fspath(self.model))
        if not isinstance(self.model, str) or not self.model:
            raise TypeError(
                f"speculative_config: model must be a directory or a hub id, got {show(self.model)}"
            )
        if self.method not in _HEADS:
            raise ValueError(
                f"speculative_config: model means nothing for method {self.method!r}; leave it "
                f"out, or write method {_either(_HEADS)}"
            )

    def _check_revision(self) -> None:
        if self.revision is None:
            return
        if not isinstance(self.revision, str) or not self.revision:
            raise TypeError(
                "speculative_config: revision must be a branch, tag or commit, got "
                f"{show(self.revision)}"
            )
        if self.model is None:
            raise ValueError(
                f"speculative_config: revision means nothing for method {self.method!r}; leave it "
                "out"
            )
        if self.model == "bundled" or Path(self.model).expanduser().is_dir():
            raise ValueError(
                f"speculative_config: revision is for a head on the hub, and model={self.model!r} "
                "is a directory; leave it out"
            )

    def _check(self, name: str, low: int, high: int, *, only: str) -> None:
        value: Any = getattr(self, name)
        if value is None:  # fields of one method may be left out
            return
        if self.method != only:
            raise ValueError(
                f"speculative_config: {name} means nothing for method {self.method!r}; leave it out"
            )
        check_integer(f"speculative_config: {name}", value, low, high)


def _check_method(method: object) -> None:
    if method not in get_args(SpeculativeMethod):
        known = ", ".join(get_args(SpeculativeMethod))
        heads = f"; of the methods with weights it is {_either(_HEADS)}"
        hint = heads if method in _OTHER_WEIGHTS else ""
        raise ValueError(
            f"speculative_config: method must be one of {known}, got {show(method)}{hint}"
        )


def _either(names: Collection[str]) -> str:
    *others, last = map(repr, names)
    return f"{', '.join(others)} or {last}"
