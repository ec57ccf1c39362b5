"""The readers of draft heads' configurations: a line for each method."""

from collections.abc import Mapping

from jaxinfer.model.draft_head.dflash.config import read_dflash_config
from jaxinfer.model.draft_head.eagle3.config import read_eagle3_config
from jaxinfer.model.draft_head.head_config import HeadReader

READERS: Mapping[str, HeadReader] = {"eagle3": read_eagle3_config, "dflash": read_dflash_config}
"""By `SpeculativeConfig.method`."""
