"""Measures an engine's memory for `benchmark.py --memory`, and draws it for docs/memory.md.

python -m scripts.measurements.memory    # draws the pictures anew from the kept records
"""

import dataclasses
import time
from pathlib import Path
from typing import Any

from jaxinfer.measure.random_weights import build_engine
from jaxinfer.profiling.memory.holdings import MemoryHolding, MemoryPhase
from jaxinfer.sampling_params import SamplingParams
from scripts.docs.pictures.memory import phases_picture, samples_picture
from scripts.docs.tables import Record, latest
from scripts.measurements.memory_recording import MemorySample, record_memory
from scripts.measurements.results import ROOT, load_results
from scripts.speed.report import engine_record

FIGURES = ROOT / "docs" / "figures"
SEQUENCES, PROMPT_TOKENS, OUTPUT_TOKENS = 64, 512, 128
_KEPT_SAMPLES = 64


def memory_report(model_shape: str | None, engine_arguments: dict[str, Any]) -> dict[str, Any]:
    """Phases of an engine's start, and what its steps hold while a batch generates.

    Args:
        model_shape: random weights of this shape, or None for the model of `engine_arguments`.
        engine_arguments: what the user set.

    Returns:
        JSON-like values; of the samples at most 64, evenly chosen.
    """
    defaults = {"max_model_len": PROMPT_TOKENS + OUTPUT_TOKENS, "max_num_seqs": SEQUENCES}
    params = SamplingParams(temperature=0.0, max_tokens=OUTPUT_TOKENS, ignore_eos=True)
    with build_engine(model_shape, defaults | engine_arguments) as llm:
        size = llm.model_config.vocab_size
        prompts = [[(i + 7 * j) % size for j in range(PROMPT_TOKENS)] for i in range(SEQUENCES)]
        llm.generate(prompts, params, use_tqdm=False)  # programs of first use are compiled
        llm.reset_prefix_cache()
        compiled, start = llm.num_compilations, time.perf_counter()
        with record_memory(llm) as recording:
            llm.generate(prompts, params, use_tqdm=False)
        seconds = time.perf_counter() - start
        every = -(-len(recording.samples) // _KEPT_SAMPLES)
        return {
            **engine_record(llm, model_shape),
            "sequences": SEQUENCES,
            "prompt_tokens": PROMPT_TOKENS,
            "output_tokens": OUTPUT_TOKENS,
            "seconds": seconds,
            "num_steps": len(recording.samples),
            "num_compilations": llm.num_compilations - compiled,
            "report": recording.report.to_dict(),
            "kv_bytes": recording.kv_bytes,
            "text": str(recording).splitlines(),
            "samples": [dataclasses.asdict(sample) for sample in recording.samples[::every]],
        }


def pictures(records: list[Record]) -> dict[str, str]:
    """The SVGs of docs/memory.md by the names of their files, of the bundled model on a CPU."""
    record = latest(records, "memory-bundled")[-1]
    report = record["report"]
    phases = [
        MemoryPhase(phase["name"], tuple(MemoryHolding(**each) for each in phase["holdings"]))
        for phase in report["phases"]
    ]
    samples = [MemorySample(**sample) for sample in record["samples"]]
    return {
        "memory-phases.svg": phases_picture(report["device"], phases),
        "memory-steps.svg": samples_picture(samples, kv_bytes=record["kv_bytes"]),
    }


def draw(directory: Path = FIGURES) -> None:
    """Write the pictures."""
    for name, text in pictures(load_results()).items():
        (directory / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    draw()
