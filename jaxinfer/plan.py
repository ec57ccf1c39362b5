"""`jaxinfer plan`: estimates a model's memory, context and speed on a GPU; needs neither."""

import json
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jaxinfer.cli.engine import speaking_of_flags
from jaxinfer.cli.flags.engine import ADAPTER_NEEDS, CACHE_DTYPES, SHORT_FLAGS
from jaxinfer.cli.flags.fields import add_field_flag, flag_of, given
from jaxinfer.cli.flags.parser import (
    CommandParser,
    comma_separated_integers,
    json_object,
    positive_integer,
)
from jaxinfer.cli.process import FAILED, OK, end_process, run_command
from jaxinfer.config import EngineConfig

if TYPE_CHECKING:
    import argparse

    from jaxinfer.planning import Plan

_EXAMPLES = """examples:
  jaxinfer plan Qwen3-8B
  jaxinfer plan Qwen3-32B --device h100 --tp 2 --context 8192 --batch 1,16,64
  jaxinfer plan Qwen3-14B --compare h100,2xa100,4xl40s
  jaxinfer plan ./my-model --device 24:600:125 --json
  jaxinfer plan Qwen3-8B --context 131072 --hf-overrides '{"rope_scaling": {
    "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}}'
  jaxinfer plan Qwen3-0.6B --runner pooling --context 512

exit status: 0, or 1 if a plan does not fit or can't be made"""

_COUNT = {"type": positive_integer}
_SIZES = {
    "runner": {},
    "hf_overrides": {"type": json_object, "metavar": "JSON"},
    "gpu_memory_utilization": {},
    "max_num_seqs": _COUNT,
    "max_num_batched_tokens": _COUNT,
    "block_size": _COUNT,
    "quantization": {"metavar": "SCHEME"},
    "kv_cache_dtype": {"choices": CACHE_DTYPES},
    "kv_offloading_size": {},
    "kv_offloading_directory": {},
    "kv_offloading_disk_size": {},
    "context_parallel_size": _COUNT,
    "data_parallel_size": {"type": positive_integer, "metavar": "REPLICAS"},
    "prefill_replicas": {},
    "speculative_config": {"type": json_object, "metavar": "JSON"},
    "pipeline_parallel_size": {"type": positive_integer, "metavar": "STAGES"},
    "enable_expert_parallel": {"action": "store_true"},
    "expert_parallel_size": {"type": positive_integer, "metavar": "GROUPS"},
    "enable_eplb": {"action": "store_true"},
    "eplb_config": {"type": json_object, "metavar": "JSON"},
    "enable_lora": {"action": "store_true"},
    "max_loras": _COUNT,
    "max_lora_rank": _COUNT,
}
"""Fields of `EngineConfig` that are flags, and how they are read."""
_FLAGS = {
    **{name: flag_of(name) for name in (*_SIZES, "dtype", "context")},
    "tensor_parallel_size": "--tp",
}
_DEFAULTS = {
    "max_num_seqs": "256, or the largest batch",
    "runner": "generate, or pooling for a classifier",
}


def build_parser() -> CommandParser:
    """The flags of `jaxinfer plan`."""
    description = (
        "Estimate a model's memory on a GPU, how many sequences of which length fit beside it, and "
        "how long first and later tokens take: the least time (bytes and operations over the GPU's "
        "speeds) and the time expected from recorded runs. Needs no GPU and no weights."
    )
    parser = CommandParser("plan", description, _EXAMPLES)
    parser.add_argument(
        "model",
        help="directory with config.json, hub id in the local cache, a name like Qwen3-8B, or a "
        "bundled model: bundled or bundled-experts",
    )
    parser.add_argument(
        "--device",
        default="h200",
        help="h200, h100, h100-pcie, a100, a100-40gb, l40s, rtx4090, a10, t4, or "
        "MEMORY_GIB:GB_PER_S:TFLOPS (default: h200)",
    )
    parser.add_argument(
        SHORT_FLAGS["tensor_parallel_size"],
        "--tp",
        "--tensor-parallel-size",
        dest="tensor_parallel_size",
        metavar="TP",
        type=positive_integer,
        default=1,
        help="devices that share the model (default: 1)",
    )
    parser.add_argument(
        "--dtype",
        choices=["auto", "bfloat16", "float16"],
        default="auto",
        help="of weights and activations (default: auto, the model's own)",
    )
    parser.add_argument(
        "--context",
        type=positive_integer,
        help="tokens of each sequence (default: 2048, or the model's limit)",
    )
    parser.add_argument(
        "--batch",
        dest="batches",
        metavar="BATCH",
        type=comma_separated_integers,
        help="sequences at once, like 1,8,64 (default: powers of 2 up to 256 that fit)",
    )
    parser.add_argument(
        "--compare",
        metavar="NAMES",
        help="devices, several of one like 2xh100, or models, with commas between, in one table "
        "with MODEL on --device (default: none)",
    )
    engine = parser.add_argument_group("engine")
    for name, reading in _SIZES.items():
        flags = [SHORT_FLAGS[name], flag_of(name)] if name in SHORT_FLAGS else []
        shown = {"default": _DEFAULTS.get(name), "reading": reading}
        add_field_flag(engine, EngineConfig, name, *flags, flagged=_SIZES, **shown)
    parser.needs |= ADAPTER_NEEDS
    parser.add_argument("--json", action="store_true", help="print one JSON object, or a list")
    parser.add_argument(
        "-q", "--quiet", action="store_true", help="print nothing: the exit status says if it fits"
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    arguments = build_parser().parse_args(argv)
    return run_command("plan", lambda: _run(arguments))


def _run(arguments: "argparse.Namespace") -> int:
    plans = _plans(arguments)
    if arguments.json and not arguments.quiet:
        values = [plan.to_dict() for plan in plans]
        print(json.dumps(values if arguments.compare else values[0], indent=2))
    elif not arguments.quiet:
        from jaxinfer.cli.plan_tables import comparison_lines, plan_lines

        print("\n".join(comparison_lines(plans) if arguments.compare else plan_lines(plans[0])))
    return OK if all(plan.fits for plan in plans) else FAILED


def _plans(arguments: "argparse.Namespace") -> "list[Plan]":
    from jaxinfer.planning import plan

    options: dict[str, Any] = given(arguments, frozenset(_SIZES))
    for name in ("dtype", "context", "batches"):
        options[name] = getattr(arguments, name)
    chosen = [(arguments.model, arguments.device.lower(), arguments.tensor_parallel_size)]
    if arguments.compare is not None:
        chosen += [_compared(name.strip(), arguments) for name in arguments.compare.split(",")]
    with speaking_of_flags(_FLAGS):
        return [
            plan(model, device, tensor_parallel_size=count, **options)
            for model, device, count in dict.fromkeys(chosen)
        ]


def _compared(name: str, arguments: "argparse.Namespace") -> tuple[str, str, int]:
    """The model, the device and the number of devices that a name of `--compare` means."""
    from jaxinfer.planning.devices import find_device

    if not name:
        raise ValueError(
            f"--compare has an empty name in {arguments.compare!r}; write names with commas between"
        )
    if several := re.fullmatch(r"([1-9][0-9]?)x(.+)", name):
        find_device(several[2])
        return arguments.model, several[2].lower(), int(several[1])
    try:
        find_device(name)
    except ValueError:
        if ":" in name:  # a device's numbers, with a mistake
            raise
        return name, arguments.device, arguments.tensor_parallel_size
    return arguments.model, name.lower(), arguments.tensor_parallel_size


if __name__ == "__main__":
    end_process(main(sys.argv[1:]))
