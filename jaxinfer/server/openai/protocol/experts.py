"""The route that moves experts between devices: its body and its answer."""

from typing import TypedDict

from pydantic import Field

from jaxinfer.server.openai.protocol.base import Body


class RebalanceBody(Body):
    """The loads by which experts are to move."""

    load: list[list[float]] | None = Field(
        None,
        description="Tokens of each expert, [layers, experts]; left out, what the engine counted.",
    )


class Rebalanced(TypedDict):
    """How full the fullest devices were and are, by the mean, and the slots that changed."""

    before: float
    after: float
    num_moved: int
