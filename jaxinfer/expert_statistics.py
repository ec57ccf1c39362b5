"""What calls about experts return: how they were used, and what moving them gained."""

from dataclasses import dataclass, replace

import numpy as np


@dataclass(frozen=True, eq=False)
class ExpertStatistics:
    """How the tokens of an engine's steps were spread over experts.

    A token counts once in each expert that it goes through; padding does not count. Of a prompt's
    chunk only the last token goes through the last layer's experts, unless the prompt's
    log-probabilities are asked for. Letters: L layers that have experts, X experts of a layer.

    Attributes:
        layers: the indices of these layers in the model, ascending.
        load: int64 ``[L, X]``, the tokens that went through each expert.
        steps: the steps of the model that had a token; of a multi-step decode each counts.
        num_distinct: int64 ``[L]``, the experts that a step's tokens went through, summed over the
            steps.
    """

    layers: tuple[int, ...]
    load: np.ndarray
    steps: int
    num_distinct: np.ndarray

    @property
    def distinct(self) -> np.ndarray:
        """The mean number of experts that a step's tokens went through; float64 ``[L]``."""
        return self.num_distinct / max(self.steps, 1)

    @property
    def imbalance(self) -> np.ndarray:
        """The tokens of a layer's busiest expert by those of a mean one; float64 ``[L]``.

        1 is even, X is one expert for all tokens, and 0 stands where there was none.
        """
        mean = self.load.mean(axis=1)
        return np.divide(self.load.max(axis=1), mean, out=np.zeros_like(mean), where=mean > 0)

    def plus(self, other: "ExpertStatistics") -> "ExpertStatistics":
        """Both together, of one model."""
        return replace(
            self,
            load=self.load + other.load,
            steps=self.steps + other.steps,
            num_distinct=self.num_distinct + other.num_distinct,
        )

    def since(self, earlier: "ExpertStatistics") -> "ExpertStatistics":
        """What has come since these earlier statistics of the same engine."""
        return replace(
            self,
            load=self.load - earlier.load,
            steps=self.steps - earlier.steps,
            num_distinct=self.num_distinct - earlier.num_distinct,
        )


@dataclass(frozen=True)
class RebalancedExperts:
    """What moving experts gained, for the loads that it was done for.

    Attributes:
        before: tokens of the fullest group of devices over those of the mean, layers added up.
        after: the same with the experts as they lie now; 1.0 is the least.
        num_moved: slots, of all layers, that hold another expert than before.
    """

    before: float
    after: float
    num_moved: int
