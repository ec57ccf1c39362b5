"""The draft heads that an engine can draft with: a line for each method."""

from collections.abc import Callable
from typing import Any, NamedTuple

from jaxinfer.kernels.policy import Kernels
from jaxinfer.model.draft_head.dflash.config import read_dflash_config
from jaxinfer.model.draft_head.eagle3.config import read_eagle3_config
from jaxinfer.model.draft_head.head_config import HeadReader
from jaxinfer.serving.programs.speculative.dflash.drafter import DFlashDrafter
from jaxinfer.serving.programs.speculative.dflash.pages import DFlashPages
from jaxinfer.serving.programs.speculative.drafter import Drafter
from jaxinfer.serving.programs.speculative.eagle3.drafter import Eagle3Drafter
from jaxinfer.serving.programs.speculative.eagle3.pages import Eagle3Pages
from jaxinfer.serving.programs.speculative.watched_layers import HeadPages


class HeadMethod(NamedTuple):
    """What a method with a draft head is made of.

    Attributes:
        read_config: reads a head's config.json.
        pages: ``(configuration) -> `` what pages hold for the head.
        drafter: ``(k, configuration, kernels) -> `` what drafts.
    """

    read_config: HeadReader
    pages: Callable[[Any], HeadPages]
    drafter: Callable[[int, Any, Kernels], Drafter]


HEADS = {
    "eagle3": HeadMethod(read_eagle3_config, Eagle3Pages, Eagle3Drafter),
    "dflash": HeadMethod(read_dflash_config, DFlashPages, DFlashDrafter),
}
"""By `SpeculativeConfig.method`."""
