"""Reads an adapter's directory as PEFT saves it: ``adapter_config.json`` and its safetensors."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxinfer.checks import show
from jaxinfer.errors import ModelLoadError
from jaxinfer.model.adapters.matrices import Matrices, Target
from jaxinfer.model.adapters.names import paired
from jaxinfer.model.checkpoint.directory_files import contained_file, has_file, read_json
from jaxinfer.model.checkpoint.safetensors_file import read_header

CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"
_MOST_CONFIG_BYTES = 16 << 20

_UNSUPPORTED = (
    *("use_dora", "lora_bias", "modules_to_save", "target_parameters", "fan_in_fan_out"),
    *("layer_replication", "trainable_token_indices", "alora_invocation_tokens", "use_qalora"),
    *("use_bdlora", "arrow_config"),
)
"""Fields that must be false, empty or absent: what they add is no product of two matrices."""
_CHANGES_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""Values of init_lora_weights whose training began by changing the model's own weights."""


@dataclass(frozen=True)
class PeftConfig:
    """The fields of ``adapter_config.json`` that say how large what an adapter adds is.

    Attributes:
        rank: of modules that `ranks` doesn't name.
        alpha: of modules that `alphas` doesn't name; the scale is alpha / rank, or / its root.
        ranks: by module, or the end of its path, or a regular expression of that.
        alphas: by module, as `ranks`.
        by_root: rsLoRA.
    """

    rank: int
    alpha: float
    ranks: Mapping[str, int]
    alphas: Mapping[str, float]
    by_root: bool

    @classmethod
    def of_file(cls, values: Mapping[str, Any], file: Path) -> "PeftConfig":
        """Read the fields.

        Raises:
            ModelLoadError: a field has another type, or asks for what is not supported; names it.
        """
        if values.get("peft_type") != "LORA":
            kind = show(values.get("peft_type"))
            raise ModelLoadError(f"{file}: peft_type is {kind}; only LORA is supported")
        for name in _UNSUPPORTED:
            if values.get(name):
                given = show(values[name])
                raise ModelLoadError(
                    f"{file}: {name} is {given}, which is not supported; merge the adapter into "
                    "the weights with PEFT (merge_and_unload)"
                )
        if (bias := values.get("bias", "none")) != "none":
            raise ModelLoadError(f"{file}: bias is {show(bias)}; only none is supported")
        begun = values.get("init_lora_weights")
        if isinstance(begun, str) and begun.lower().startswith(_CHANGES_BASE):
            raise ModelLoadError(
                f"{file}: init_lora_weights is {show(begun)}, which changed the model's weights; "
                "save the adapter with path_initial_model_for_weight_conversion"
            )
        patterns = {name: values.get(name) or {} for name in ("rank_pattern", "alpha_pattern")}
        for name, pattern in patterns.items():
            numbers = isinstance(pattern, dict) and all(map(_is_number, pattern.values()))
            if not numbers:
                raise ModelLoadError(f"{file}: {name} must be an object of numbers above 0")
        rank: Any = values.get("r")
        alpha: Any = values.get("lora_alpha")
        for name, value in (("r", rank), ("lora_alpha", alpha)):
            if not _is_number(value):
                raise ModelLoadError(f"{file}: {name} must be a number above 0, is {show(value)}")
        ranks, alphas = patterns["rank_pattern"], patterns["alpha_pattern"]
        return cls(rank, alpha, ranks, alphas, bool(values.get("use_rslora")))

    def rank_of(self, module: str) -> int:
        """The rank of a module, by its path in the model."""
        return _found(self.ranks, module, self.rank)

    def scale_of(self, module: str) -> float:
        """What is multiplied by ``b @ a``."""
        rank = self.rank_of(module)
        return _found(self.alphas, module, self.alpha) / (math.sqrt(rank) if self.by_root else rank)


def read_peft(directory: Path) -> dict[Target, Matrices]:
    """The matrices of an adapter's directory.

    Raises:
        ModelLoadError: a file is missing or wrong, or has what is not supported; one line that
            names file and key.
    """
    if not directory.is_dir():
        raise ModelLoadError(
            f"{directory}: no such directory; give the one where PEFT saved the adapter, "
            f"with {CONFIG_FILE} and {WEIGHTS_FILE}"
        )
    values = read_json(directory, CONFIG_FILE, _MOST_CONFIG_BYTES)
    config = PeftConfig.of_file(values, directory / CONFIG_FILE)
    if not has_file(directory, WEIGHTS_FILE) and has_file(directory, "adapter_model.bin"):
        raise ModelLoadError(
            f"{directory}: has adapter_model.bin alone, which can run code; save it as safetensors"
        )
    file = contained_file(directory, WEIGHTS_FILE, directory)
    entries = read_header(file)
    try:
        pairs = paired(list(entries))
    except ValueError as error:
        raise ModelLoadError(f"{file}: {error}") from None
    found = {}
    for target, (name_a, name_b) in pairs.items():
        a, b = entries[name_a].mapped(), entries[name_b].mapped()
        module = f"model.{target}"
        if a.ndim == 2 and a.shape[0] != config.rank_of(module):
            raise ModelLoadError(
                f"{file}: {target} has rank {a.shape[0]}, and {CONFIG_FILE} says "
                f"{config.rank_of(module)}"
            )
        found[target] = Matrices(a, b, config.scale_of(module))
    return found


def _found(patterns: Mapping[str, Any], module: str, default: Any) -> Any:
    """The value of the first pattern that a module's path ends with, as PEFT looks it up."""
    for pattern, value in patterns.items():
        try:
            if re.match(rf"(.*\.)?({pattern})$", module):
                return value
        except re.error:
            continue
    return default


def _is_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return 0 < value < math.inf
