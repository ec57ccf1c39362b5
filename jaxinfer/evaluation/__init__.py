"""How far a model is from another with the same vocabulary: quantized weights, mostly, from plain.

A model is its config and its parameters; `compare` runs it over token ids by `jaxinfer.forward`'s
parts, without an engine. `expert_use` tells how it spreads their tokens over its experts.
"""

from jaxinfer.evaluation.comparison import Model, compare
from jaxinfer.evaluation.experts import expert_use
from jaxinfer.evaluation.figures import Evaluation, TextFigures

__all__ = ["Evaluation", "Model", "TextFigures", "compare", "expert_use"]
