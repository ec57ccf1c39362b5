"""What `LLM` tells of a model's experts."""

from jaxinfer.expert_statistics import ExpertStatistics
from jaxinfer.serving.pooling_door import PoolingDoor


class ExpertDoor(PoolingDoor):
    """The call that reads how experts were used."""

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
