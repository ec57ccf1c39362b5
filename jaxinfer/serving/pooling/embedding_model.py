"""A model's own files about its vectors: pooling, dimensions that may be cut, prompts by name."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from jaxinfer.checks import show
from jaxinfer.errors import ModelLoadError
from jaxinfer.model.checkpoint.directory_files import has_file, read_json, read_text
from jaxinfer.model.hf_config import read_config_file
from jaxinfer.model.hf_overrides import apply_overrides

_MODULES = "modules.json"
_POOLING_CONFIG = "config.json"
_PROMPTS = "config_sentence_transformers.json"
_KNOWN_MODULES = ("Transformer", "Pooling", "Normalize")
_LAST_TOKEN = "lasttoken"
_MODE = "pooling_mode"
_MOST_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class EmbeddingModel:
    """How a model's vectors are asked for.

    Attributes:
        size: E, length of a whole vector.
        is_matryoshka: whether a vector's leading part is a vector, too.
        dimensions: the lengths that the files list; empty allows every one.
        prompts: texts to put in front of others, by name.
    """

    size: int
    is_matryoshka: bool = False
    dimensions: tuple[int, ...] = ()
    prompts: Mapping[str, str] = MappingProxyType({})

    def check_dimensions(self, dimensions: int | None) -> None:
        """Refuse a length that the model was not trained for.

        Raises:
            TypeError: it is no integer.
            ValueError: vectors can't be cut, or not to this length.
        """
        if dimensions is None:
            return
        if isinstance(dimensions, bool) or not isinstance(dimensions, int):
            raise TypeError(f"dimensions must be an integer, got {show(dimensions)}")
        if not self.is_matryoshka:
            raise ValueError(
                "dimensions: the model's files name no Matryoshka dimensions, so that a cut vector "
                "means nothing; leave it out, or start the engine with "
                'hf_overrides={"is_matryoshka": True} if its authors trained it for that'
            )
        if not 1 <= dimensions <= self.size:
            raise ValueError(f"dimensions must be from 1 to {self.size}, got {dimensions}")
        if self.dimensions and dimensions not in self.dimensions:
            known = ", ".join(map(str, self.dimensions))
            raise ValueError(f"dimensions is {dimensions}, but the model has {known}")

    def prompt(self, name: str) -> str:
        """The prompt of a name.

        Raises:
            ValueError: there is none.
        """
        if name not in self.prompts:
            known = ", ".join(map(repr, self.prompts)) or "none"
            raise ValueError(
                f"prompt_name {show(name)}: the model's {_PROMPTS} has no such prompt; it has "
                f"{known}"
            )
        return self.prompts[name]


def read_embedding_model(
    directory: Path | None, size: int, overrides: Mapping[str, Any] | None = None
) -> EmbeddingModel:
    """What a model's directory says of its vectors; a plain model's is all of the last token.

    Args:
        directory: of the model; None for a model without files.
        size: of its hidden states.
        overrides: of config.json.

    Raises:
        ModelLoadError: a file is damaged; names it.
        ValueError: the files ask for another pooling than that of the last token, or for more
            layers than the engine runs.
    """
    if directory is None:
        return EmbeddingModel(size=size)
    if has_file(directory, _MODULES):
        _check_modules(directory)
    config = apply_overrides(read_config_file(directory / "config.json"), overrides or {})
    inner = config.get("text_config")
    fields = {**(inner if isinstance(inner, Mapping) else {}), **config}
    more: Mapping[str, Any] = {}
    if has_file(directory, _PROMPTS):
        more = read_json(directory, _PROMPTS, _MOST_BYTES)
    dimensions = _dimensions(directory, size, {**more, **fields})
    says_so = any(each.get("is_matryoshka") is True for each in (more, fields))
    return EmbeddingModel(
        size=size,
        is_matryoshka=bool(dimensions) or says_so,
        dimensions=dimensions,
        prompts=_prompts(directory, more),
    )


def makes_vectors(directory: Path | None) -> bool:
    """True for a directory of an embedding model: Sentence Transformers' files name its pooling.

    Raises:
        ModelLoadError: the file that lists its modules is damaged.
    """
    if directory is None or not has_file(directory, _MODULES):
        return False
    return any(kind == "Pooling" for kind, _ in _modules(directory))


def _modules(directory: Path) -> list[tuple[str, str]]:
    """The kinds of a directory's modules, each with the path of its files."""
    try:
        modules = json.loads(read_text(directory, _MODULES, _MOST_BYTES))
        return [(module["type"].rsplit(".", 1)[-1], module["path"]) for module in modules]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        file = directory / _MODULES
        raise ModelLoadError(f'{file}: must be a list of objects with "type" and "path"') from None


def _check_modules(directory: Path) -> None:
    """Refuse a Sentence-Transformers directory whose vectors are made in another way."""
    file = directory / _MODULES
    for kind, path in _modules(directory):
        if kind not in _KNOWN_MODULES:
            raise ValueError(
                f"{file} has a module {kind[:100]!r}, which the engine does not run; it makes "
                "vectors of " + ", ".join(_KNOWN_MODULES)
            )
        if kind == "Pooling":
            _check_pooling(directory, f"{path}/{_POOLING_CONFIG}")


def _check_pooling(directory: Path, name: str) -> None:
    """Refuse all pooling but that of the last token."""
    config = read_json(directory, name, _MOST_BYTES)
    modes = {key for key, value in config.items() if key.startswith(f"{_MODE}_") and value is True}
    if (newer := config.get(_MODE)) is not None:  # of Sentence Transformers 6
        modes |= set(map(str, newer if isinstance(newer, list) else [newer]))
    modes = {mode.removeprefix(f"{_MODE}_") for mode in modes}
    if modes != {_LAST_TOKEN}:
        asked = " and ".join(sorted(modes)) or "no mode"
        raise ValueError(
            f"{directory / name} pools by {asked}; the engine's vectors are those of the last "
            f"token ({_LAST_TOKEN})"
        )


def _dimensions(directory: Path, size: int, fields: Mapping[str, Any]) -> tuple[int, ...]:
    given = fields.get("matryoshka_dimensions")
    if given is None:
        return ()
    if not isinstance(given, list) or not all(type(d) is int and 1 <= d <= size for d in given):
        raise ModelLoadError(
            f"{directory}: matryoshka_dimensions must be a list of integers from 1 to {size}"
        )
    return tuple(sorted(given))


def _prompts(directory: Path, fields: Mapping[str, Any]) -> Mapping[str, str]:
    given = fields.get("prompts") or {}
    if not isinstance(given, dict) or not all(isinstance(text, str) for text in given.values()):
        raise ModelLoadError(f"{directory / _PROMPTS}: prompts must be an object of texts")
    return MappingProxyType(given)
