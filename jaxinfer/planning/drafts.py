"""What drafts take of every device: the texts that they are made from, or a draft head's parts."""

import dataclasses
import math
from pathlib import Path
from typing import TYPE_CHECKING

from jaxinfer.config import EngineConfig
from jaxinfer.errors import ModelLoadError
from jaxinfer.planning.model_files import cached_file
from jaxinfer.planning.shapes import BYTES_OF, ModelShape
from jaxinfer.speculative_config import SpeculativeConfig

if TYPE_CHECKING:
    from jaxinfer.model.draft_head.files import DraftHead

MOST_ROWS_WITH_DRAFTS = 64
"""Most rows of a step with drafts, each draft counted as one."""
_INT = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class DraftMemory:
    """Bytes of drafts on each device, which are the same on one device and on several.

    Attributes:
        num_drafts: k, most drafts of a row in a step; 0 without drafts.
        weight_bytes: a draft head's parameters.
        text_bytes: tokens that drafts are made from, and lengths of sequences.
        bytes_per_token: in the KV cache beside the model's keys and values: the head's own, and
            the feature that it reads.
        heads: K, key/value heads of the head; 0 without a head.
        num_states: hidden states of the model that the head reads.
        num_passes: times that a step reads the head's parameters.
    """

    num_drafts: int = 0
    weight_bytes: int = 0
    text_bytes: int = 0
    bytes_per_token: int = 0
    heads: int = 0
    num_states: int = 0
    num_passes: int = 0

    def most_rows(self, max_num_seqs: int) -> int:
        """Most rows of a decode step that are sampled at once, drafts included."""
        rows = max_num_seqs * (self.num_drafts + 1)
        return max(max_num_seqs, min(rows, MOST_ROWS_WITH_DRAFTS))


NO_DRAFTS = DraftMemory()
"""Of an engine without drafts."""


def draft_memory(shape: ModelShape, dtype: str, config: EngineConfig) -> DraftMemory:
    """What the drafts of an engine take; a head's files are read as far as their headers.

    Args:
        shape: the model.
        dtype: of the head's weights and of what pages hold for it.
        config: names the drafts, and the sizes of their texts.

    Raises:
        ModelLoadError: there is no such head here, or it is none for this model; one line.
        ValueError: it can't draft as many tokens as are asked for.
    """
    drafts = config.speculative_config
    if drafts is None:
        return NO_DRAFTS
    slots = config.max_num_seqs + 1
    if drafts.model is None:
        longest = config.max_model_len or shape.max_context_length
        tokens = slots * (longest + 1) + drafts.corpus_size
        return DraftMemory(num_drafts=drafts.num_drafts, text_bytes=_INT * tokens)
    from jaxinfer.model.draft_head.files import head_shapes  # loads NumPy

    head, size = _read_head(drafts, shape), BYTES_OF[dtype]
    layer = head.config.layer
    weights = sum(math.prod(each) for each in head_shapes(head.config, head.own).values())
    most = head.config.most_drafts
    num_drafts = drafts.num_drafts if most is None else min(drafts.num_drafts, most)
    return DraftMemory(
        num_drafts=num_drafts,
        num_passes=1 if head.config.drafts_at_once else num_drafts,
        weight_bytes=weights * size + head.config.draft_vocab_size * _INT,
        text_bytes=_INT * slots,
        bytes_per_token=head.config.values_of_token * size,
        heads=layer.num_key_value_heads,
        num_states=len(head.config.states),
    )


def _read_head(drafts: SpeculativeConfig, shape: ModelShape) -> "DraftHead":
    """The head that the configuration names; nothing is downloaded."""
    from jaxinfer.model.draft_head.files import check_drafts, read_draft_head
    from jaxinfer.model.draft_head.readers import READERS
    from jaxinfer.model.draft_head.shipped import shipped_head

    name, method = str(drafts.model), drafts.method
    try:
        directory = shipped_head(name, method, shape) or Path(name).expanduser()
        if not directory.is_dir():
            hint = "no such directory and not in the hub's local cache; give a directory or a hub "
            hint += "id that was downloaded"
            directory = cached_file(name, hint, drafts.revision).parent
        head = read_draft_head(directory, shape, READERS[method])
    except ModelLoadError as error:
        raise ModelLoadError(f"speculative_config: model: {error}") from None
    check_drafts(head, drafts.num_speculative_tokens)
    return head
