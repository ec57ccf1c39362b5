"""The flags of every command that starts an engine, named as in vLLM.

Each flag's destination is a field of `EngineConfig`, and a flag that is left out is absent from
the parsed arguments: defaults and texts live in `EngineConfig` alone.
"""

import argparse
import dataclasses
import typing
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any

from jaxinfer.cli.flags.fields import add_field_flag, flag_of, given
from jaxinfer.cli.flags.parser import json_object
from jaxinfer.cli.flags.process import add_process_flags
from jaxinfer.config import (
    VLLM_CACHE_DTYPES,
    VLLM_DTYPES,
    DType,
    EngineConfig,
    KVCacheDType,
)

ENGINE_FIELDS = frozenset(field.name for field in dataclasses.fields(EngineConfig))
ADAPTER_NEEDS = dict.fromkeys(("max_loras", "max_lora_rank", "max_cpu_loras"), "enable_lora")
"""The sizes of adapters, by the field that they need; `CommandParser.needs`."""
ADAPTER_FIELDS = frozenset({"enable_lora", *ADAPTER_NEEDS})

_SUFFIXES = {"k": 1000, "m": 10**6, "g": 10**9, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
SHORT_FLAGS = {
    "tensor_parallel_size": "-tp",
    "pipeline_parallel_size": "-pp",
    "data_parallel_size": "-dp",
}
"""Short flags by field, beside the long ones."""
_BEGINS = {
    "model": "model",
    "max_model_len": "KV cache and scheduling",
    "tensor_parallel_size": "devices and compilation",
}
"""The sections of --help, by their first fields."""


def add_engine_flags(
    parser: argparse.ArgumentParser,
    *,
    defaults: Mapping[str, str] = MappingProxyType({}),
    without: Collection[str] = (),
) -> None:
    """Add one flag for each field of `EngineConfig` (a command's `--quiet` sets show_progress).

    The flags of `flags/process.py` are added too.

    Args:
        defaults: as --help shows them, where they are the command's own.
        without: fields that the command has no use for.
    """
    group = parser.add_argument_group("model")
    for name in (field.name for field in dataclasses.fields(EngineConfig)):
        if name == "show_progress" or name in without:
            continue
        if name != "model" and name in _BEGINS:
            group = parser.add_argument_group(_BEGINS[name])
        flags = [SHORT_FLAGS[name], flag_of(name)] if name in SHORT_FLAGS else []
        reading = _READ.get(name, {})
        default = defaults.get(name)
        add_field_flag(
            group,
            EngineConfig,
            name,
            *flags,
            flagged=ENGINE_FIELDS,
            default=default,
            reading=reading,
        )
    add_process_flags(parser.add_argument_group("several hosts"))


def engine_arguments(namespace: argparse.Namespace) -> dict[str, Any]:
    """The engine arguments that the user gave, ready for `LLM(**arguments)`."""
    return given(namespace, ENGINE_FIELDS)


def _size(text: str) -> int:
    """A number of tokens, as vLLM writes it: 32k is 32,000 and 32K is 32,768."""
    if text in ("auto", "-1"):
        raise argparse.ArgumentTypeError("leave the flag out to have what fits")
    try:
        return int(float(text[:-1]) * _SUFFIXES[text[-1]]) if text[-1:] in _SUFFIXES else int(text)
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(
            f"expected a number such as 32768 or 32K: {text}"
        ) from None


CACHE_DTYPES = (*typing.get_args(KVCacheDType), *VLLM_CACHE_DTYPES)
"""The values of `--kv-cache-dtype`."""

_READ: Mapping[str, Mapping[str, Any]] = {
    "skip_tokenizer_init": {"action": "store_true"},
    "hf_overrides": {"type": json_object, "metavar": "JSON"},
    "eplb_config": {"type": json_object, "metavar": "JSON"},
    "speculative_config": {"type": json_object, "metavar": "JSON"},
    "dtype": {"choices": (*typing.get_args(DType), *VLLM_DTYPES)},
    "quantization": {"metavar": "SCHEME"},
    "kv_cache_dtype": {"choices": CACHE_DTYPES},
    "max_model_len": {"type": _size},
    "max_num_batched_tokens": {"type": _size},
}
"""Arguments of `add_argument` for fields that argparse can't read by their types."""
