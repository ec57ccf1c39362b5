"""The draft heads that an engine can draft with: a line for each method."""

from collections.abc import Callable
from typing import Any, NamedTuple

from jaxinfer.kernels.policy import Kernels
from jaxinfer.serving.programs.speculative.dflash.drafter import DFlashDrafter
from jaxinfer.serving.programs.speculative.dflash.pages import DFlashPages
from jaxinfer.serving.programs.speculative.drafter import Drafter
from jaxinfer.serving.programs.speculative.eagle3.drafter import Eagle3Drafter
from jaxinfer.serving.programs.speculative.eagle3.pages import Eagle3Pages
from jaxinfer.serving.programs.speculative.watched_layers import HeadPages


class HeadMethod(NamedTuple):
    """What a method with a draft head is made of.

    Attributes:
        pages: ``(configuration) -> `` what pages hold for the head.
        drafter: ``(k, configuration, kernels) -> `` what drafts.
    """

    pages: Callable[[Any], HeadPages]
    drafter: Callable[[int, Any, Kernels], Drafter]


HEADS = {
    "eagle3": HeadMethod(Eagle3Pages, Eagle3Drafter),
    "dflash": HeadMethod(DFlashPages, DFlashDrafter),
}
"""By `SpeculativeConfig.method`; `READERS` has how their configurations are read."""
