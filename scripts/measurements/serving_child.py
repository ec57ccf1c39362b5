"""Parts of the serving benchmark that need a process of their own, because they take the device.

python -m scripts.measurements.serving_child checkpoint SHAPE DIRECTORY
python -m scripts.measurements.serving_child generate DIRECTORY LOAD ENGINE
"""

import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

_REPEATS = 3


def main(part: str, *words: str) -> None:
    """Do a part; its result is printed as a line of JSON."""
    if part == "checkpoint":
        from scripts.measurements.random_checkpoint import write_random_checkpoint

        write_random_checkpoint(words[0], Path(words[1]))
    else:
        directory, load, engine = words
        print(json.dumps(_generate(directory, json.loads(load), json.loads(engine))))


def _generate(directory: str, load: dict[str, Any], engine: dict[str, Any]) -> dict[str, Any]:
    """`LLM.generate` on the requests of a load, all at once, after one run of them."""
    from jaxinfer import LLM, SamplingParams
    from jaxinfer.cli.client.load import Load

    asked = Load(**load)
    prompts = [asked.body(index)["prompt"] for index in range(asked.num_prompts)]
    params = SamplingParams(temperature=0.0, max_tokens=asked.output_len, ignore_eos=True)
    seconds, outputs = [], []
    with LLM(directory, show_progress=False, **engine) as llm:
        compiled = llm.num_compilations
        for _ in range(1 + _REPEATS):
            begin = time.perf_counter()
            outputs = llm.generate(prompts, params, use_tqdm=False)
            seconds.append(time.perf_counter() - begin)
        compiled = llm.num_compilations - compiled
    tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
    return {
        "seconds": seconds[1:],
        "output_tokens": tokens,
        "output_tokens_per_s": tokens / statistics.median(seconds[1:]),
        "num_compilations": compiled,
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
