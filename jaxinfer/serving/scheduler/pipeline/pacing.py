"""How far the steps of a pipeline run ahead: each stage is to have one."""

from typing import Any

from jaxinfer.serving.scheduler.pacing import Pacing


class PipelinePacing(Pacing):
    """A `Pacing` with as many steps on their way as there are stages, and one that waits.

    Args:
        num_stages: S.
        args, options: of `Pacing`.
    """

    def __init__(self, num_stages: int, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.least_ahead = num_stages
        self.most_ahead += num_stages - 1
