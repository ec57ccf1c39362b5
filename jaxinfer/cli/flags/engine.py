"""The flags of every command that starts an engine, named as in vLLM.

Each flag's destination is a field of `EngineConfig`, and a flag that is left out is absent from
the parsed arguments: defaults live in `EngineConfig` alone.
"""

import argparse
import dataclasses
import json
import typing
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from jaxinfer.cli.flags.parser import given
from jaxinfer.cli.flags.process import add_process_flags
from jaxinfer.config import EngineConfig, LogprobsMode

ENGINE_FIELDS = frozenset(field.name for field in dataclasses.fields(EngineConfig))

_SUFFIXES = {"k": 1000, "m": 10**6, "g": 10**9, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}

# The defaults that --help shows for fields whose default None leaves the choice to the engine.
_DECIDED_LATER = {
    "model": "the bundled model",
    "tokenizer": "the model's",
    "hf_overrides": "the model's config.json as it is",
    "revision": "main",
    "max_model_len": "the model's own limit",
    "max_num_batched_tokens": "16384 on a GPU, 2048 on a CPU",
    "num_kv_blocks": "what device memory holds",
    "compilation_cache_dir": "~/.cache/jaxinfer/xla",
    "compile_ahead": "at start-up on a GPU, at first use on a CPU",
    "num_decode_steps": "8 for small models, 1 for others",
    "device_timeout": "300 on a GPU, 60 at start, 0 on a CPU",
}


def add_engine_flags(
    parser: argparse.ArgumentParser, *, defaults: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Add one flag for each field of `EngineConfig` (a command's `--quiet` sets show_progress).

    The flags of `flags/process.py` are added too.

    Args:
        parser: the command's.
        defaults: the command's own defaults, by field, as --help shows them.
    """
    groups = [
        parser.add_argument_group(title)
        for title in ("model", "KV cache and scheduling", "devices and compilation")
    ]
    for group, add in zip(
        groups, (_add_model_flags, _add_cache_flags, _add_device_flags), strict=True
    ):
        add(group)
        for action in group._group_actions:
            if action.nargs != 0 or isinstance(action, argparse.BooleanOptionalAction):
                default = defaults.get(action.dest) or _default(action.dest)
                action.help = f"{action.help} (default: {default})"
    add_process_flags(parser.add_argument_group("several hosts"))


def _default(name: str) -> str:
    value = getattr(EngineConfig, name)
    return _DECIDED_LATER[name] if value is None else str(value)


def engine_arguments(namespace: argparse.Namespace) -> dict[str, Any]:
    """The engine arguments that the user gave, ready for `LLM(**arguments)`."""
    return given(namespace, ENGINE_FIELDS)


def _add_model_flags(group: argparse._ArgumentGroup) -> None:
    unset: Any = argparse.SUPPRESS
    group.add_argument(
        "--model",
        default=unset,
        help="a directory or a Hugging Face hub id",
    )
    group.add_argument("--tokenizer", default=unset, help="directory or hub id of the tokenizer")
    group.add_argument(
        "--skip-tokenizer-init",
        action="store_true",
        default=unset,
        help="load no tokenizer: token ids only",
    )
    group.add_argument(
        "--generation-config",
        default=unset,
        choices=("auto", "vllm"),
        help="sampling defaults: the model's own (auto), or none of them (vllm)",
    )
    group.add_argument(
        "--hf-overrides",
        type=_json_object,
        metavar="JSON",
        default=unset,
        help="fields of config.json to replace, as a JSON object",
    )
    group.add_argument("--revision", default=unset, help="branch, tag or commit on the hub")
    group.add_argument(
        "--dtype",
        default=unset,
        choices=("auto", "float32", "bfloat16", "float16", "half", "float"),
        help="dtype of weights and KV cache (auto: the checkpoint's on a GPU, float32 on a CPU)",
    )
    group.add_argument(
        "--seed",
        type=int,
        default=unset,
        help="seed of random draws; the same seed repeats a run",
    )


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not JSON ({error}): {text}") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"not a JSON object: {text}")
    return value


def _size(text: str) -> int:
    """A number of tokens, as vLLM writes it: 32k is 32,000 and 32K is 32,768.

    Raises:
        argparse.ArgumentTypeError: it is no number.
    """
    if text in ("auto", "-1"):
        raise argparse.ArgumentTypeError("leave the flag out to have what fits")
    try:
        return int(float(text[:-1]) * _SUFFIXES[text[-1]]) if text[-1:] in _SUFFIXES else int(text)
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(
            f"expected a number such as 32768 or 32K: {text}"
        ) from None


def _add_cache_flags(group: argparse._ArgumentGroup) -> None:
    unset: Any = argparse.SUPPRESS
    group.add_argument(
        "--max-model-len",
        type=_size,
        default=unset,
        help="maximum number of tokens of prompt and output together",
    )
    group.add_argument(
        "--max-logprobs",
        type=int,
        default=unset,
        help="maximum number of log-probabilities at a position that a request may ask for "
        "(-1: all)",
    )
    group.add_argument(
        "--logprobs-mode",
        default=unset,
        choices=typing.get_args(LogprobsMode),
        help="log-probabilities of the model's own logits, of the distribution sampled, or of the "
        "logits divided by the temperature",
    )
    group.add_argument(
        "--max-num-seqs",
        type=int,
        default=unset,
        help="maximum number of sequences that run at once",
    )
    group.add_argument(
        "--max-num-batched-tokens",
        type=_size,
        default=unset,
        help="maximum number of tokens in one step",
    )
    group.add_argument(
        "--block-size", type=int, default=unset, help="tokens in a KV block: 8, 16, ... 256"
    )
    group.add_argument("--num-kv-blocks", type=int, default=unset, help="number of KV blocks")
    group.add_argument(
        "--gpu-memory-utilization",
        type=float,
        default=unset,
        help="share of a GPU's memory that the engine may use",
    )
    group.add_argument(
        "--enable-prefix-caching",
        action=argparse.BooleanOptionalAction,
        default=unset,
        help="keep the KV blocks of finished requests for prompts that share them, or don't",
    )
    group.add_argument(
        "--swap-space", type=float, default=unset, help="GiB of host memory for preempted requests"
    )
    group.add_argument(
        "--preemption-mode",
        default=unset,
        choices=("recompute", "swap"),
        help="what happens to the blocks of a preempted request",
    )
    group.add_argument(
        "--scheduling-policy",
        default=unset,
        choices=("fcfs", "priority", "fair"),
        help="first come, first served; lower priority values first; or that, with a bound on how "
        "often a request is overtaken",
    )
    group.add_argument(
        "--online",
        action=argparse.BooleanOptionalAction,
        default=unset,
        help="short steps while requests arrive, for latency; or large ones, for throughput",
    )


def _add_device_flags(group: argparse._ArgumentGroup) -> None:
    unset: Any = argparse.SUPPRESS
    group.add_argument(
        "-tp",
        "--tensor-parallel-size",
        type=int,
        default=unset,
        help="number of devices to spread the model over",
    )
    group.add_argument(
        "-dp",
        "--data-parallel-size",
        type=int,
        default=unset,
        help="replicas of the model, each on --tensor-parallel-size devices, behind one queue",
    )
    group.add_argument(
        "--attention-backend",
        default=unset,
        choices=("auto", "mosaic", "triton", "numba", "xla"),
        help="auto takes the fastest one this device supports; `jaxinfer env` says which and why",
    )
    group.add_argument(
        "--compilation-cache-dir",
        default=unset,
        help="where compiled programs are kept between runs; one that others may write to is not "
        'used ("" keeps none)',
    )
    group.add_argument(
        "--compile-ahead",
        action=argparse.BooleanOptionalAction,
        default=unset,
        help="compile every shape at start-up, or each at its first use",
    )
    group.add_argument(
        "--eager",
        action="store_true",
        default=unset,
        help="compile nothing, for debuggers: breakpoints in the model see values; slow",
    )
    group.add_argument(
        "--num-decode-steps",
        type=int,
        default=unset,
        help="decode steps in one launch while few sequences run",
    )
    group.add_argument(
        "--device-timeout",
        type=float,
        default=unset,
        help="seconds after which a device that does not answer ends the process (0: never)",
    )
