"""Small engines of four layers, on one device and in stages, for the tests of this room."""

import dataclasses
import functools
from typing import Any

from jaxinfer import LLM
from jaxinfer.testing import TINY_CONFIG, TINY_SETTINGS, tiny_params

CONFIG = dataclasses.replace(TINY_CONFIG, num_hidden_layers=4)
TIED = dataclasses.replace(CONFIG, tie_word_embeddings=True)
TWO_STAGES = {"pipeline_parallel_size": 2}


@functools.cache
def params_of(config: Any) -> Any:
    return tiny_params(config, seed=1)


def engine(config: Any = CONFIG, **options: Any) -> LLM:
    """An engine of token ids that compiles few shapes; `options` go to `LLM`."""
    model = {"params": params_of(config), "config": config, "num_decode_steps": 1}
    return LLM(**{**model, **TINY_SETTINGS, **options})


def parts(llm: LLM) -> Any:
    """The one replica: its runner, its scheduler and its engine."""
    return llm._loaded.replicas[0]


def tokens(outputs: Any) -> list[list[list[int]]]:
    return [[each.token_ids for each in output.outputs] for output in outputs]
