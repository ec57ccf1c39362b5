"""The files of a draft head: their tensors, checked against the head's shape and the model's."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from jaxinfer.errors import ModelLoadError
from jaxinfer.model.checkpoint.safetensors_file import TensorEntry
from jaxinfer.model.checkpoint.source_plan import Shape, Source, SourcePlan, Tensor, check_plan
from jaxinfer.model.checkpoint.weight_files import tensor_entries
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.draft_head.head_config import (
    EMBEDDING,
    VOCABULARY,
    HeadConfig,
    HeadReader,
    read_head_config,
)

OFFSETS = "d2t"
"""The tensor of the differences between the model's ids of the head's tokens and its own."""
_UNUSED = ("t2d",)
_MASK_FILE = "mask_embedding.pt"


@dataclass(frozen=True)
class DraftHead:
    """A draft head in files that have been checked against the model.

    Attributes:
        config: its shape.
        entries: the files' tensors, by name.
        plan: what each parameter is made of, by path.
        own: which of `EMBEDDING` and `VOCABULARY` it has, and does not read the model's.
    """

    config: HeadConfig
    entries: Mapping[str, TensorEntry]
    plan: SourcePlan
    own: tuple[str, ...]

    def token_ids(self) -> np.ndarray:
        """The model's ids of the head's tokens, int32 ``[Vd]``.

        Raises:
            ModelLoadError: one of them is no token of the model.
        """
        ids = np.arange(self.config.draft_vocab_size, dtype=np.int64)
        if OFFSETS not in self.entries:
            return ids.astype(np.int32)
        entry, size = self.entries[OFFSETS], self.config.layer.vocab_size
        ids += entry.mapped()
        foreign = ids[(ids < 0) | (ids >= size)]
        if len(foreign):
            raise ModelLoadError(
                f"{entry.file}: {OFFSETS} names token {foreign[0]}, and the model has {size}: "
                "a head for another model"
            )
        return ids.astype(np.int32)


def read_draft_head(directory: Path, model: ModelConfig, reader: HeadReader) -> DraftHead:
    """Read the head in a directory, its weights as far as their headers, and check it.

    Args:
        directory: holds config.json and safetensors.
        model: the one that it is to draft for.
        reader: of the method's config.json.

    Raises:
        ModelLoadError: a file is missing or damaged, the head can't be run, or is for another
            model; one line that names the file.
    """
    config = read_head_config(directory, model, reader)
    if (directory / _MASK_FILE).exists():
        raise ModelLoadError(f"{directory}: {_MASK_FILE} is not read: it is a pickle")
    entries = {
        name.removeprefix("model."): entry
        for name, entry in tensor_entries(directory).items()
        if name not in _UNUSED
    }
    own = tuple(path for path in (EMBEDDING, VOCABULARY) if f"{path}.weight" in entries)
    if config.needs_vocabulary and VOCABULARY not in own:
        # Else the error would speak of models without one.
        raise ModelLoadError(f"{directory}: a draft head needs a tensor '{VOCABULARY}.weight'")
    plan = {
        path: Source((Tensor(config.file_name(path, entries), shape),))
        for path, shape in head_shapes(config, own).items()
    }
    size, offsets = config.draft_vocab_size, {}
    if size != config.layer.vocab_size or OFFSETS in entries:
        offsets = {OFFSETS: Source((Tensor(OFFSETS, (size,), ("int64", "int32")),))}
    check_plan(plan | offsets, entries, directory)
    head = DraftHead(config, entries, plan, own)
    head.token_ids()
    return head


def check_drafts(head: DraftHead, wanted: int | None) -> None:
    """Refuse more drafts than the head can make.

    Raises:
        ValueError: one line.
    """
    most = head.config.most_drafts
    if wanted is not None and most is not None and wanted > most:
        raise ValueError(
            f"speculative_config: num_speculative_tokens={wanted} is more than the head can draft; "
            f"set it to at most {most}"
        )


def head_shapes(config: HeadConfig, own: Collection[str]) -> dict[str, Shape]:
    """The shape of each floating-point parameter, by path.

    Args:
        config: of the head.
        own: which of `EMBEDDING` and `VOCABULARY` it has; the latter where it is needed, anyway.
    """
    shapes, E = config.shapes(), config.layer.hidden_size
    if EMBEDDING in own:
        shapes[EMBEDDING] = (config.layer.vocab_size, E)
    if VOCABULARY in own or config.needs_vocabulary:
        shapes[VOCABULARY] = (config.draft_vocab_size, E)
    return shapes
