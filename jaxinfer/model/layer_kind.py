"""What tells one layer of a model from another, as a value."""

from dataclasses import dataclass

ATTENTION_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP_PROJECTIONS = ("gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True)
class LayerKind:
    """A kind of layer: layers of one kind have the same parameters and share one trace. Hashable.

    Attributes:
        head_norms: each query and key head has an RMSNorm before its rotation.
        wide_norms: the queries, and the keys, of all heads together have one instead.
        norms: names of the layer's own norms.
        biases: names of the projections that have a bias, such as ``"q_proj"``.
        experts: its MLP is the config's `Experts`.
        rotation: which of `Architecture.rotations` turns its heads.
    """

    head_norms: bool = False
    wide_norms: bool = False
    norms: tuple[str, str] = ("input_layernorm", "post_attention_layernorm")
    biases: tuple[str, ...] = ()
    rotation: int = 0
    experts: bool = False
