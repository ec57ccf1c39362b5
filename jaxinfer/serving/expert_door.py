"""What `LLM` tells of a model's experts, and does with them."""

from typing import Any

from jaxinfer.expert_statistics import ExpertStatistics, RebalancedExperts
from jaxinfer.serving.expert_balance import rebalance
from jaxinfer.serving.pooling_door import PoolingDoor


class ExpertDoor(PoolingDoor):
    """The calls that read how experts were used, and move them."""

    def expert_statistics(self, *, reset: bool = False) -> ExpertStatistics:
        """How tokens were spread over the experts, since the start or the last reset.

        Waits for the steps that are launched. Replicas are summed.

        Args:
            reset: what is counted later begins at zero; metrics go on.

        Raises:
            ValueError: the engine was made without `expert_statistics=True`.
        """
        experts = self._handle.loaded.experts
        return self._handle.driver.call(lambda: experts.read(reset=reset))

    def rebalance_experts(self, load: Any = None) -> RebalancedExperts:
        """Move experts between devices, by their load: see `expert_balance.rebalance`.

        Args:
            load: tokens of each expert, `[layers, experts]`; None takes what `expert_statistics`
                has counted.
        """
        return self._handle.driver.call(lambda: rebalance(self._handle, load))
