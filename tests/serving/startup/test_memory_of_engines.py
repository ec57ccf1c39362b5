"""Engines that were made and closed leave no memory, thread, process or descriptor behind."""

import json
import subprocess
import sys

import pytest

from tests.model.text.small_tokenizer import write_tokenizer

_PROGRAM = """
import gc
import psutil
from jaxinfer import LLM, SamplingParams

sizes = []
for _ in range(8):
    with LLM(show_progress=False, max_num_seqs=8) as llm:
        params = SamplingParams(max_tokens=8, logprobs=2)
        llm.generate(["Once upon a time", "Hello"] * 4, params, use_tqdm=False)
    gc.collect()
    sizes.append(psutil.Process().memory_info().rss >> 20)
print(*sizes)
"""


@pytest.mark.slow
def test_closed_engines_keep_no_memory():
    result = subprocess.run(
        [sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True
    )
    sizes = [int(size) for size in result.stdout.split()]
    assert len(sizes) == 8
    # Megabytes; JAX's own caches fill with the first engines. Memory that is freed but not given
    # back makes some 260 here.
    assert max(sizes[5:]) - min(sizes[1:3]) < 100, sizes


_MANY = """
import gc, json, sys, threading
import jax, psutil
from tests.serving.small_llm import GREEDY, PROMPTS, small_llm

process, counts = psutil.Process(), []
for _ in range(int(sys.argv[1])):
    with small_llm(tokenizer=sys.argv[2]) as llm:
        choice = GREEDY.clone(structured_outputs={"choice": ["a", "b"]})
        llm.generate(PROMPTS, [GREEDY.clone(logprobs=2), GREEDY, choice], use_tqdm=False)
        llm.chat([{"role": "user", "content": "a"}], GREEDY, use_tqdm=False)
        llm.score([PROMPTS[0]])
        llm.update_params(llm._loaded.replicas[0].runner.resident.params)
    del llm
    gc.collect()
    counts.append({
        "descriptors": process.num_fds(),
        "threads": process.num_threads(),
        "processes": len(process.children()),
        "arrays": len(jax.live_arrays()),
        "objects": len(gc.get_objects()),
        "memory": process.memory_info().rss >> 20,
    })
print(json.dumps(counts))
"""


@pytest.mark.slow
@pytest.mark.parametrize("count", [20, pytest.param(100, marks=pytest.mark.exhaustive)])
def test_engines_one_after_another_leave_everything_flat(tmp_path, count):
    write_tokenizer(tmp_path)
    command = [sys.executable, "-c", _MANY, str(count), str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    counts = json.loads(result.stdout)
    assert len(counts) == count
    later = counts[count // 2 :]
    for name in ("descriptors", "threads", "processes", "arrays"):
        assert {each[name] for each in later} == {counts[9][name]}, name
    # A closed engine's objects would be hundreds.
    assert max(each["objects"] for each in later) - counts[9]["objects"] < 5 * len(later)
    early = max(each["memory"] for each in counts[: count // 2])
    assert max(each["memory"] for each in later) - early < 50, counts
