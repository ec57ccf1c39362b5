"""What tells one layer of a model from another, as a value."""

from dataclasses import dataclass

ATTENTION_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP_PROJECTIONS = ("gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True)
class LayerKind:
    """A kind of layer: layers of one kind have the same parameters and share one trace. Hashable.

    Attributes:
        head_norms: each query and key head has an RMSNorm before its rotation.
        biases: names of the projections that have a bias, such as ``"q_proj"``.
        rotation: which of `Architecture.rotations` turns its heads.
    """

    head_norms: bool = False
    biases: tuple[str, ...] = ()
    rotation: int = 0
