"""Compares output tokens a second with `transformers.generate`, on the same prompts.

Sixty-four ragged prompts with ragged answer lengths, greedy, float32, all cores for both. What
counts is tokens that were asked for: transformers decodes its one padded batch until the longest
answer ends, and the rows that are done by then earn nothing.
"""

import dataclasses
import random
import statistics
import time
from typing import Any

from jaxinfer import LLM
from jaxinfer.model.checkpoint.hub import BUNDLED_MODEL
from scripts.speed.timing import run_workload
from scripts.speed.workloads import Workload

_ROWS = 64
_PROMPT_TOKENS = (8, 128)
_OUTPUT_TOKENS = (8, 128)
_LIMIT = 3.0


def transformers_report(repeats: int = 3) -> dict[str, Any]:
    """Time both engines in turn on the bundled model.

    Returns:
        Every repeat of both, and "ratio": the median over repeats of their quotients.
    """
    with LLM(max_num_seqs=_ROWS, show_progress=False) as llm:
        peer = _TransformersPeer()
        ours: list[float] = []
        theirs: list[float] = []
        compiled = 0
        for repeat in range(-1, repeats):  # the first one warms both up
            workload = ragged_workload(repeat, llm.model_config.vocab_size)
            timing = run_workload(llm, workload)
            seconds = peer.run(workload)
            if repeat >= 0:
                ours.append(workload.num_output_tokens / timing.seconds)
                theirs.append(workload.num_output_tokens / seconds)
                compiled += timing.num_compilations
        settings = dataclasses.asdict(llm.engine_config)
    ratios = [mine / other for mine, other in zip(ours, theirs, strict=True)]
    return {
        "rows": _ROWS,
        "prompt_tokens": _PROMPT_TOKENS,
        "output_tokens": _OUTPUT_TOKENS,
        "engine": settings,
        "output_tokens_per_s": ours,
        "transformers_output_tokens_per_s": theirs,
        "transformers_versions": peer.versions,
        "num_compilations": compiled,
        "ratio": statistics.median(ratios),
        "limit": _LIMIT,
    }


def ragged_workload(repeat: int, vocab_size: int) -> Workload:
    """Sixty-four prompts whose lengths never change and whose ids differ in each repeat."""
    # Named by text: -1 and 1 as seeds would be one, and the second a run of cached prefixes.
    lengths, ids = random.Random(0), random.Random(f"repeat {repeat}")
    prompt_lengths = [lengths.randint(*_PROMPT_TOKENS) for _ in range(_ROWS)]
    return Workload(
        name="ragged",
        description=f"{_ROWS} ragged prompts and answers",
        prompts=[[ids.randrange(vocab_size) for _ in range(length)] for length in prompt_lengths],
        max_tokens=[lengths.randint(*_OUTPUT_TOKENS) for _ in range(_ROWS)],
    )


class _TransformersPeer:
    """The bundled model in transformers, float32, one left-padded batch."""

    def __init__(self) -> None:
        import torch
        import transformers

        self._torch = torch
        self.versions = {"torch": torch.__version__, "transformers": transformers.__version__}
        self._model: Any = transformers.AutoModelForCausalLM.from_pretrained(
            BUNDLED_MODEL, dtype=torch.float32
        ).eval()
        # Answers have the lengths that were asked for, as with ignore_eos.
        self._model.generation_config.eos_token_id = None
        self._model.generation_config.pad_token_id = 0

    def run(self, workload: Workload) -> float:
        """Seconds to write the longest answer for the whole batch."""
        longest = max(map(len, workload.prompts))
        padded = [[0] * (longest - len(prompt)) + prompt for prompt in workload.prompts]
        mask = [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in workload.prompts]
        start = time.perf_counter()
        with self._torch.inference_mode():
            self._model.generate(
                self._torch.tensor(padded),
                attention_mask=self._torch.tensor(mask),
                max_new_tokens=max(workload.max_tokens),
                do_sample=False,
            )
        return time.perf_counter() - start


def transformers_lines(report: dict[str, Any]) -> list[str]:
    """The report for people."""
    ours = statistics.median(report["output_tokens_per_s"])
    theirs = statistics.median(report["transformers_output_tokens_per_s"])
    return [
        f"{report['rows']} ragged prompts on the bundled model, output tok/s",
        f"  jaxinfer      {ours:>10,.0f}",
        f"  transformers  {theirs:>10,.0f}",
        f"  ratio {report['ratio']:.2f} (limit {report['limit']:.0f}); "
        f"compiled while measuring: {report['num_compilations']}",
    ]
