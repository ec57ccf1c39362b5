"""What the configurations of draft heads of all methods have in common, and how they are read."""

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Protocol

from jaxinfer.checks import show
from jaxinfer.errors import ModelLoadError
from jaxinfer.model.checkpoint.source_plan import Shape
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.families.table import family_of
from jaxinfer.model.field_checks import whole_number
from jaxinfer.model.hf_config import read_config_file

SPECULATORS = "speculators_model_type"
"""The field that tells the form of the project speculators."""
EMBEDDING, VOCABULARY = "embed_tokens", "lm_head"
"""The paths of an embedding and of a vocabulary's rows of the head's own."""


class HeadConfig(Protocol):
    """The shape and the constants of a draft head; hashable, static in programs."""

    @property
    def layer(self) -> ModelConfig:
        """Its layers, as of a decoder of these alone; V and E are the model's."""
        ...

    @property
    def draft_vocab_size(self) -> int:
        """Vd, tokens that it can guess."""
        ...

    @property
    def states(self) -> tuple[int, ...]:
        """The model's layers whose incoming residual stream it reads; 0 reads the embedding."""
        ...

    @property
    def most_drafts(self) -> int | None:
        """Most tokens that it can draft; None is any number."""
        ...

    @property
    def drafts_at_once(self) -> bool:
        """Whether one pass gives all drafts; else each takes one of its own."""
        ...

    @property
    def needs_vocabulary(self) -> bool:
        """Whether it can't guess by the model's own head."""
        ...

    @property
    def values_of_token(self) -> int:
        """Values that pages hold of a token, beside the model's keys and values."""
        ...

    def shapes(self) -> dict[str, Shape]:
        """The shape of each parameter, by path, but for `EMBEDDING` and `VOCABULARY`."""
        ...

    def file_name(self, path: str, names: Collection[str] = ()) -> str:
        """The name of a parameter's tensor in files with tensors of these names."""
        ...

    def to_hf(self) -> dict[str, Any]:
        """A config.json object that is read back."""
        ...


HeadReader = Callable[[Mapping[str, Any], ModelConfig], HeadConfig]
"""``(object of config.json, the model) -> configuration``; raises ValueError, one line."""


def read_head_config(directory: Path, model: ModelConfig, reader: HeadReader) -> HeadConfig:
    """The configuration of the head in a directory.

    Args:
        directory: holds its config.json.
        model: the one that it is to draft for.
        reader: of the method.

    Raises:
        ModelLoadError: there is no config.json, it describes no head that can be run, or one for
            another model; one line that names the file.
    """
    file = directory / "config.json"
    mapping = read_config_file(file)
    try:
        return reader(mapping, model)
    except ValueError as error:
        raise ModelLoadError(f"{file}: {error}") from None


def shape_of(
    mapping: Mapping[str, Any], *, name: str, method: str, classes: Collection[str], family: str
) -> Mapping[str, Any]:
    """The part of a config.json that describes the layers, as of a model of a family.

    Args:
        mapping: the object.
        name: of such heads, with its article.
        method: how speculators calls it.
        classes: that `architectures` of a head in the other form may name.
        family: the layers'.

    Raises:
        ValueError: it is no such head.
    """
    kind = mapping.get(SPECULATORS)
    if kind is None:
        given = mapping.get("architectures")
        if not isinstance(given, list) or not any(each in classes for each in given):
            wanted = next(iter(classes))
            raise ValueError(
                f"not {name}: architectures must be a list with {wanted}, got {show(given)}"
            )
        return mapping
    if kind != method:
        raise ValueError(f"not {name}: {SPECULATORS} is {show(kind)}")
    shape = mapping.get("transformer_layer_config")
    if not isinstance(shape, Mapping):
        raise ValueError(f"transformer_layer_config must be an object, got {show(shape)}")
    if shape.get("model_type", family) != family:
        raise ValueError(
            f"transformer_layer_config: model_type must be {family!r}, got "
            f"{show(shape['model_type'])}"
        )
    return shape


def refuse(names: Collection[str], *objects: Mapping[str, Any]) -> None:
    """Refuse what is not computed.

    Raises:
        ValueError: one of these fields is set in one of the objects; names it.
    """
    for name in names:
        if any(each.get(name) for each in objects):
            raise ValueError(f"{name} is not supported in a draft head")
    if any(each.get("quantization_config") for each in objects):
        raise ValueError("a quantized draft head is not supported (quantization_config)")


def read_layer(
    mapping: Mapping[str, Any], shape: Mapping[str, Any], model: ModelConfig, family: str
) -> ModelConfig:
    """The layers, which must fit the model.

    Raises:
        ValueError: they can't be read or run, or are for another model.
    """
    shape = {**shape, "eos_token_id": None, "bos_token_id": None}
    layer = ModelConfig(**family_of(family).read_config(shape), model_type=family)
    for name in ("hidden_size", "vocab_size"):
        check_fits(name, getattr(layer, name), getattr(model, name))
    if mapping.get("target_hidden_size") is not None:
        check_fits("target_hidden_size", mapping["target_hidden_size"], model.hidden_size)
    return layer


def read_draft_vocab_size(mapping: Mapping[str, Any], layer: ModelConfig) -> int:
    """Vd; the model's vocabulary where none is given."""
    size = mapping.get("draft_vocab_size")
    size = layer.vocab_size if size is None else size
    return whole_number("draft_vocab_size", size, 1, layer.vocab_size)


def check_fits(name: str, value: object, wanted: int) -> None:
    """Refuse a head for another model.

    Raises:
        ValueError: the value is not the model's.
    """
    if value != wanted:
        raise ValueError(
            f"a head for another model: {name} is {show(value)}, and the model's is {wanted}"
        )
