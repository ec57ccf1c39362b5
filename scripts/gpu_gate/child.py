"""One part of the quick check in a process of its own; prints its result as a line of JSON.

python -m scripts.gpu_gate.child '{"part": "start", "model_shape": null, "arguments": {}}'
"""

import dataclasses
import json
import sys
import time
from typing import Any

from scripts.gpu_gate.rows import Row

PROMPT = "Once upon a time"
NUM_OUTPUTS = 16
# Any model has such tokens.
_PROMPT_IDS = list(range(100, 164))


def main(task: dict[str, Any]) -> dict[str, Any]:
    """Do a part: "kernel", "start", "behaviours" or "devices"."""
    if task.get("spins"):
        from scripts.gpu_gate.kernels.spinning import add_an_arrival

        add_an_arrival()
    if task["part"] == "kernel":
        from scripts.gpu_gate.kernels.trial import try_kernel

        return {"row": try_kernel(task["op"])}
    arguments: dict[str, Any] = {"show_progress": False} | task["arguments"]
    match task["part"]:
        case "start":
            return start(task["model_shape"], arguments)
        case "behaviours":
            return {"rows": behaviours(arguments)}
        case "devices":
            return {"rows": devices(arguments)}
        case part:
            raise ValueError(f"no part {part!r}; there are kernel, start, behaviours and devices")


def start(model_shape: str | None, arguments: dict[str, Any]) -> dict[str, Any]:
    """Start an engine, and decode greedily to see that it is one; times, counts and tokens."""
    import jax

    from jaxinfer import LLM, SamplingParams
    from jaxinfer.measure.random_weights import random_weights
    from scripts.speed.cache_hits import CacheHits

    weights = {} if model_shape is None else random_weights(model_shape, arguments)
    jax.block_until_ready(weights.get("params"))
    with CacheHits() as hits:
        begin = time.perf_counter()
        llm = LLM(**{**arguments, **weights})
        engine_s = time.perf_counter() - begin
    with llm:
        compiled = llm.num_compilations
        prompt: Any = PROMPT if llm.tokenizer is not None else _PROMPT_IDS
        greedy = SamplingParams(temperature=0.0, max_tokens=NUM_OUTPUTS, ignore_eos=True)
        outputs = llm.generate(prompt, greedy, use_tqdm=False)
        return {
            "engine_s": engine_s,
            "num_programs": compiled,
            "compiled_later": llm.num_compilations - compiled,
            "cache_hits": hits.count,
            "start_up": dataclasses.asdict(llm.start_up),
            "attention_backend": llm.report.attention_backend,
            "token_ids": list(outputs[0].outputs[0].token_ids),
        }


def behaviours(arguments: dict[str, Any]) -> list[Row]:
    """What an engine of the bundled model must do."""
    from jaxinfer import LLM
    from scripts.gpu_gate.behaviours import check_behaviours

    with LLM(**arguments) as llm:
        return check_behaviours(llm)


def devices(arguments: dict[str, Any]) -> list[Row]:
    """Two devices answer as one does, be they one engine or two replicas."""
    from jaxinfer import LLM
    from scripts.gpu_gate.agreement import check_greedy_all
    from scripts.gpu_gate.behaviours import GREEDY, answers, check_one, flat, ragged_prompts

    with LLM(**arguments) as llm:
        prompts = ragged_prompts(llm)
        expected = flat(answers(llm, prompts, GREEDY))

    def check(llm: LLM) -> str:
        check_greedy_all(expected, flat(answers(llm, prompts, GREEDY)))
        return f"{len(prompts)} greedy answers as on one device"

    rows = []
    for size in ("tensor_parallel_size", "data_parallel_size", "pipeline_parallel_size"):
        try:
            with LLM(**{size: 2}, **arguments) as llm:
                rows.append(check_one(f"{size}=2", llm, check))
        except Exception as error:  # any exception is a row of the table
            rows.append(Row(f"{size}=2", f"{type(error).__name__}: {error}"[:300], False))
    return rows


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
