"""How experts are spread over devices by their load: the settings of EPLB, by vLLM's names."""

import dataclasses
import difflib
from collections.abc import Mapping
from typing import Any

from jaxinfer.checks import check_integer, show

_MOST_REDUNDANT = 4096
_BY_ITSELF = ("window_size", "step_interval", "log_balancedness", "policy", "use_async")
"""What vLLM's has for rebalancing while requests run."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EplbConfig:
    """Replicas of experts, which expert parallelism spreads by load.

    Attributes:
        num_redundant_experts: experts that a layer holds once more, over all devices together: a
            multiple of the groups that experts are split over. 0 moves experts alone.

    Raises:
        TypeError: a field has the wrong type, or is not known; names it.
        ValueError: a field is out of its range.
    """

    num_redundant_experts: int = 0

    def __post_init__(self) -> None:
        """Check the number."""
        name = "eplb_config: num_redundant_experts"
        check_integer(name, self.num_redundant_experts, 0, _MOST_REDUNDANT)

    @classmethod
    def of(cls, value: object) -> "EplbConfig":
        """A configuration as it is, or from a dictionary of its fields.

        Raises:
            TypeError: it is neither, or a field is not known.
            ValueError: as for the constructor; or experts were to be moved while requests run.
        """
        if isinstance(value, cls):
            return value
        if not isinstance(value, Mapping):
            raise TypeError(
                "eplb_config must be a dict such as {'num_redundant_experts': 16}, got "
                f"{show(value)}"
            )
        given: dict[str, Any] = dict(value)
        for name in given:
            if name in _BY_ITSELF:
                raise ValueError(
                    f"eplb_config: experts move only when rebalance_experts(load) is called, "
                    f"between requests; leave {name} out"
                )
            if name != "num_redundant_experts":
                known = ("num_redundant_experts", *_BY_ITSELF)
                nearest = difflib.get_close_matches(str(name), known, n=1)
                hint = f"did you mean {nearest[0]!r}?" if nearest else f"it has {known[0]}"
                raise TypeError(f"eplb_config has no {show(name)}; {hint}")
        return cls(**given)
