"""How a model spreads the tokens of texts over its experts."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int32

from jaxinfer.evaluation.comparison import Model, check_params, check_texts, padded
from jaxinfer.expert_statistics import ExpertStatistics
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.forward import residual_stream
from jaxinfer.model.layers.context import LayerContext, Params


def expert_use(
    model: Model,
    texts: Sequence[Sequence[int]],
    progress: Callable[[], Any] = lambda: None,
) -> ExpertStatistics:
    """How the tokens of texts were spread over a model's experts; a text is a step.

    All tokens count in all layers. Programs are compiled as by `compare`.

    Args:
        model: the model; a row whose router fails counts somewhere.
        texts: ids in [0, V), at least one of each text.
        progress: called after each text.

    Raises:
        ValueError: the model has no experts, or as by `compare`.
        TypeError: as by `compare`.
    """
    experts = model.config.experts
    layers = () if experts is None else experts.layers(model.config.num_hidden_layers)
    if experts is None or not layers:
        raise ValueError(f"a {model.config.model_type} model without experts spreads no tokens")
    check_texts(texts, model.config.vocab_size, least=1)
    check_params(model)
    load = np.zeros((len(layers), experts.num_experts), np.int64)
    num_distinct = np.zeros(len(layers), np.int64)
    for token_ids in texts:
        ids = jnp.asarray(padded(token_ids))
        of_text = text_loads(model.params, model.config, ids, jnp.int32(len(token_ids)))
        found = np.asarray(of_text)
        load += found
        num_distinct += (found > 0).sum(axis=1)
        progress()
    return ExpertStatistics(layers, load, len(texts), num_distinct)


@functools.partial(jax.jit, static_argnames="config")
@jax.numpy_rank_promotion("allow")  # as `forward`
def text_loads(
    params: Params, config: ModelConfig, token_ids: Int32[Array, " T"], length: Int32[Array, ""]
) -> Int32[Array, "L X"]:
    """The tokens of a text through each expert of the layers that have some.

    Args:
        params: the tree.
        config: the model's shape.
        token_ids: a text, and padding behind it.
        length: tokens without the padding.
    """
    loads: dict[int, jax.Array] = {}
    tokens = _OneText(jnp.arange(token_ids.shape[0], dtype=jnp.int32), length)

    def change(context: LayerContext) -> LayerContext:
        def tap(name: str, told: jax.Array) -> None:
            if name == "experts":
                assert context.index is not None
                loads[context.index] = told

        return replace(context, tokens=tokens, tap=tap)

    residual_stream(params, config, token_ids, change=change)
    return jnp.stack([loads[index] for index in sorted(loads)])


@dataclass(frozen=True)
class _OneText:
    """A text with padding behind it, as `LayerTokens`."""

    positions: Int32[Array, " T"]
    length: Int32[Array, ""]
    of_tokens: Mapping[str, Any] = field(default_factory=dict)
    of_rows: Mapping[str, Any] = field(default_factory=dict)

    @property
    def slot_mapping(self) -> Int32[Array, " T"]:
        """As if the text had the slots behind the padding's one."""
        return jnp.where(self.positions < self.length, self.positions + 1, 0)

    @property
    def cu_seqlens(self) -> Int32[Array, " 2"]:
        """One row."""
        return jnp.stack([jnp.zeros_like(self.length), self.length])

    @property
    def context_lens(self) -> Int32[Array, " 1"]:
        """The row's keys."""
        return self.length[None]
