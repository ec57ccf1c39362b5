"""Random adapters of the small model: as matrices, trees and PEFT's directories; and merged."""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxinfer.model.adapters.groups import ADAPTED
from jaxinfer.model.adapters.matrices import Matrices, Target
from jaxinfer.model.checkpoint.safetensors_file import write_file
from jaxinfer.model.projections import projection_shapes
from tests.serving.small_llm import CONFIG, small_params

SCALE = 0.5


def matrices(seed: int, rank: int = 4, *, names: Any = None) -> dict[Target, Matrices]:
    """An adapter of all projections, or some, large enough to change greedy tokens."""
    rng, found = np.random.default_rng(seed), {}
    for layer in range(CONFIG.num_hidden_layers):
        for part, name in ADAPTED:
            outputs, inputs = projection_shapes(CONFIG)[name]
            a = rng.normal(size=(rank, inputs)).astype(np.float32) * 0.3
            b = rng.normal(size=(outputs, rank)).astype(np.float32) * 0.3
            if names is None or name in names:
                found[Target(layer, part, name)] = Matrices(a, b, SCALE)
    return found


def tree(found: dict[Target, Matrices]) -> dict[str, np.ndarray]:
    """With PEFT's names."""
    named = {}
    for target, each in found.items():
        named[f"base_model.model.model.{target}.lora_A.weight"] = each.a
        named[f"base_model.model.model.{target}.lora_B.weight"] = each.b
    return named


def merged(found: dict[Target, Matrices], params: Any = None) -> Any:
    """The small model's weights with an adapter added to them."""
    params = jax.tree.map(np.array, small_params() if params is None else params)
    for target, each in found.items():
        part = params["model"]["layers"][str(target.layer)][target.part]
        part[target.name] = part[target.name] + each.scale * (each.b @ each.a)
    return params


def save_peft(directory: Path, tensors: dict[str, np.ndarray], **config: Any) -> str:
    """An adapter's directory, as PEFT saves it."""
    directory.mkdir(parents=True, exist_ok=True)
    values = {"peft_type": "LORA", "r": 4, "lora_alpha": 2, "bias": "none", **config}
    (directory / "adapter_config.json").write_text(json.dumps(values))
    write_file(
        directory / "adapter_model.safetensors",
        tensors.items(),
        {name: jax.ShapeDtypeStruct(each.shape, each.dtype) for name, each in tensors.items()},
    )
    return str(directory)
