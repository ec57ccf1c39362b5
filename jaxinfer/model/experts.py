"""The experts of a model, as a value of its config. Nothing here imports JAX."""

from dataclasses import dataclass
from typing import Any

from jaxinfer.model.field_checks import flag, whole_number

MOST_EXPERTS = 4096
_LARGEST_WIDTH = 2**20
_FORM = ("fp8", (128, 128), "group")


@dataclass(frozen=True)
class Experts:
    """What stands in the place of a layer's MLP: a router, and many MLPs of which it takes a few.

    Attributes:
        num_experts: X, of a layer.
        experts_per_token: k, how many of them each token goes through.
        intermediate_size: F, width of one expert.
        norm_topk_prob: the weights of the k experts are divided by their sum.
        dense_layers: indices of layers that have one MLP, of the config's `intermediate_size`,
            ascending.

    Raises:
        ValueError: a field is of the wrong type or out of range; named as in config.json.
    """

    num_experts: int
    experts_per_token: int
    intermediate_size: int
    norm_topk_prob: bool = True
    dense_layers: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        whole_number("num_experts", self.num_experts, 1, MOST_EXPERTS)
        whole_number("num_experts_per_tok", self.experts_per_token, 1, self.num_experts)
        whole_number("moe_intermediate_size", self.intermediate_size, 1, _LARGEST_WIDTH)
        flag("norm_topk_prob", self.norm_topk_prob)

    def layers(self, num_layers: int) -> tuple[int, ...]:
        """The indices of layers with experts, of a model with this number of layers."""
        return tuple(i for i in range(num_layers) if i not in self.dense_layers)

    def check_model(self, config: Any) -> None:
        """Check that a `ModelConfig` can have these experts.

        Raises:
            ValueError: its weights are quantized in another form than `fp8`, or it has fewer
                layers.
        """
        form = config.quantization
        if form is not None and (form.codes, form.block, form.inputs) != _FORM:
            of_files = ": take a checkpoint in bfloat16 or one in that form"
            raise ValueError(
                "models with experts take plain weights, or fp8 in blocks of 128 by 128 with "
                f"dynamic inputs{'' if form.stored == 'plain' else of_files}"
            )
        for layer in self.dense_layers:
            whole_number("dense_layers", layer, 0, config.num_hidden_layers - 1)
