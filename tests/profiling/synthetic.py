"""A recording that was never made: two steps of a tiny model, by hand."""

import dataclasses
import json
from typing import Any

from jaxinfer.planning.shapes import ModelShape
from jaxinfer.profiling.device_steps import device_steps
from jaxinfer.profiling.host_time import step_times
from jaxinfer.profiling.reading import Recording, make_report
from jaxinfer.profiling.report import ProfileReport
from jaxinfer.profiling.trace.steps import StepFacts
from jaxinfer.profiling.trace.xplane import KernelEvent, Span

SHAPE = ModelShape(
    vocab_size=512,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    max_position_embeddings=256,
    tie_word_embeddings=True,
)
PREFILL = StepFacts(
    kind="prefill", rows=2, tokens=20, context_tokens=20, pairs=110, programs=("P", "S")
)
DECODE = StepFacts(
    kind="decode", rows=2, tokens=2, context_tokens=22, pairs=22, programs=("D", "S")
)
PROGRAMS = {
    "P": ("jit_prefill_step", {"dot.1": "qkv", "dot": "mlp"}),
    "D": ("jit_decode_step", {"dot.1": "mlp", "copy": None}),
    "S": ("jit_sample_greedy", {"argmax": "sample"}),
}
PEAK = {"name": "X", "bytes_per_s": 1e12, "flops_per_s": 1e14, "source": "its data sheet"}


def kernel(name: str, module: str, start: float, duration: float, run: int = 0) -> KernelEvent:
    return KernelEvent(name, name, f"jit_{module}", run, start, duration)


# As on a GPU, whose traces do not number the runs of programs; times in nanoseconds.
KERNELS = [
    kernel("dot.1", "prefill_step", 1000, 500),
    KernelEvent("Memset 3", "dot", "jit_prefill_step", 0, 1690, 10),
    kernel("dot", "prefill_step", 1700, 300),
    KernelEvent("memcpy", "", "", 0, 2000, 50),
    kernel("argmax", "sample_greedy", 2050, 100),
    kernel("dot.1", "decode_step", 2300, 100),
    kernel("copy", "decode_step", 2350, 100),
    kernel("argmax", "sample_greedy", 2500, 40),
    KernelEvent("MemcpyH2D", "", "", 0, 2900, 5),  # what the next step is given
]
# As the engine's loop has it: a step is launched before the one before is read.
SPANS = [
    Span("schedule", 500, 100),
    Span("launch", 600, 300),
    Span("pack", 650, 100),
    Span("schedule", 950, 20),
    Span("launch", 1000, 100),
    Span("pack", 1010, 30),
    Span("fetch", 1100, 1190),
    Span("detokenize", 2295, 10),
    Span("schedule", 2306, 2),
    Span("fetch", 2310, 250),
    Span("detokenize", 2565, 15),
]


def recording(**changes: Any) -> dict[str, Any]:
    return {
        "title": "a tiny model on X",
        "model": json.loads(json.dumps(dataclasses.asdict(SHAPE))),
        "device": "X",
        "platform": "gpu",
        "dtype": "bfloat16",
        "num_devices": 1,
        "peak": PEAK,
        **changes,
    }


def report(**changes: Any) -> ProfileReport:
    read = recorded(**changes)
    return make_report(read.facts, read.steps, read.hosts, read.programs)


def recorded(**changes: Any) -> Recording:
    steps = device_steps([PREFILL, DECODE], KERNELS, PROGRAMS)
    hosts = step_times(SPANS, [("prefill", 1), ("decode", 1)])
    return Recording(recording(**changes), steps, [SPANS], hosts, PROGRAMS)
