"""A short benchmark as rows of the table: checked for a steady state, not for its speed."""

import json
import sys
from typing import Any

from jaxinfer.profiling.figures import share_text
from scripts.gpu_gate.processes import TIMED_OUT, run
from scripts.gpu_gate.rows import Row

_BATCH_SIZES, _PROMPT_TOKENS = (2, 64), 512
# Room for both batches; counting how many blocks fit would compile programs that never run.
_NUM_KV_BLOCKS = 4096


def run_bench(limit_s: float) -> list[Row]:
    """Measure prefill and decode speed of Qwen3-0.6B's shape; a row for each batch size."""
    command = [sys.executable, "-m", "scripts.gpu_gate.benchmark"]
    done = run(command, limit_s=limit_s, settings={"JAX_LOG_COMPILES": "1"})
    if done.returncode:
        verdict = "timed out" if done.returncode == TIMED_OUT else done.stderr.strip()[-300:]
        return [Row("bench", verdict, False)]
    rows = [bench_row(speed) for speed in json.loads(done.stdout)]
    if not all(row.good for row in rows):
        compiled = [line for line in done.stderr.splitlines() if "Finished XLA" in line]
        print("\n== bench, in the order of compiling\n" + "\n".join(compiled), flush=True)
    return rows


def main() -> None:
    """Measure in this process, and print the speeds as JSON."""
    from jaxinfer.cli.platform import start_platform
    from jaxinfer.measure.random_weights import build_engine
    from scripts.speed.batch_speeds import fitting_arguments, measure_speeds
    from scripts.speed.engine_report import speed_record

    start_platform()
    lengths, steps = [_PROMPT_TOKENS], 32
    arguments = fitting_arguments(_BATCH_SIZES, lengths, steps)
    arguments |= {"show_progress": False, "num_kv_blocks": _NUM_KV_BLOCKS}
    with build_engine("0.6b", arguments) as llm:
        speeds = measure_speeds(llm, _BATCH_SIZES, lengths, decode_steps=steps, repeats=3)
        print(json.dumps([speed_record(llm, speed) for speed in speeds]))


def bench_row(speed: dict[str, Any]) -> Row:
    """A row of the table; bad if it was no steady state."""
    compiled = speed["num_compilations"]
    what = (
        f"prefill {speed['prefill_tokens_per_s']:,.0f} tok/s{_of_floor(speed, 'prefill')}, "
        f"decode {speed['decode_step_s'] * 1e3:.3f} ms/step{_of_floor(speed, 'decode')}"
    )
    if compiled:
        what += f"; no steady state: {compiled} programs were compiled while it was measured"
    return Row(f"bench {speed['rows']} x {speed['prompt_tokens']}", what, not compiled)


def _of_floor(row: dict[str, Any], what: str) -> str:
    share = row[f"{what}_of_floor"]
    return "" if share is None else f" ({share_text(share)} of the floor)"


if __name__ == "__main__":
    main()
