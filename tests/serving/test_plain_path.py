"""One plain decode step goes through few files, which a reader can follow: on the host, on a GPU.

Overlap, halves of a prefill, swapping, slot edits and recovery stand beside this path: their files
run only when they are needed. The steps are those of one device, between two borders of blocks.
"""

import functools
import inspect
import re
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import jax.numpy as jnp
import pytest
from jax._src import monitoring

import jaxinfer
from jaxinfer import RequestOutputKind, SamplingParams
from jaxinfer.kernels.implementations import import_all
from jaxinfer.kernels.policy import Kernels
from jaxinfer.model.modules import abstract_params
from jaxinfer.model.sharding import ShardingRules, make_mesh
from jaxinfer.serving.programs.kinds.sampled_decode import SampledDecodeKey
from jaxinfer.serving.programs.layout import DecodeShape
from jaxinfer.serving.programs.program_set import program_of
from jaxinfer.serving.programs.programs import Programs
from jaxinfer.serving.programs.steps import StepContext
from tests.kernels.h200_target import trace_for_h200
from tests.model import tiny
from tests.serving.small_llm import PROMPTS, small_llm

PACKAGE = Path(jaxinfer.__file__).parent
MOST_HOST_FILES = 16
MOST_FILES = {"xla": 15, "mosaic": 26}  # Mosaic's: 13, and 13 of its kernels
MOST_SAMPLER_FILES = 8

CONFIG = tiny.config(
    hidden_size=1024,
    intermediate_size=3072,
    num_attention_heads=16,
    num_key_value_heads=8,
    head_dim=128,
    num_hidden_layers=2,
)


def files_run(action: Callable[[], Any]) -> list[str]:
    """The package's files with functions that run in an action; imports don't count."""
    files = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        is_function = code.co_flags & inspect.CO_OPTIMIZED  # unlike a module's or a class's body
        in_package = code.co_filename.startswith(str(PACKAGE))
        if event == "call" and is_function and in_package and not _listens(frame):
            files.add(str(Path(code.co_filename).relative_to(PACKAGE)))

    threading.setprofile_all_threads(note)
    try:
        action()
    finally:
        threading.setprofile_all_threads(None)
    print(*sorted(files), sep="\n")
    return sorted(files)


def _listens(frame: FrameType | None) -> bool:
    """Whether a listener to JAX's events runs, which may be that of any engine of this process."""
    while frame is not None:
        if frame.f_code.co_filename == monitoring.__file__:
            return True
        frame = frame.f_back
    return False


def test_a_decode_step_runs_few_host_files():
    params = SamplingParams(
        temperature=0.0,
        max_tokens=30,
        ignore_eos=True,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )
    with small_llm(num_decode_steps=1) as llm:
        engine, driver = llm._loaded.replicas[0].engine, llm._handle.driver
        for i, prompt in enumerate(PROMPTS):
            llm.add_request(str(i), {"prompt_token_ids": prompt}, params)
        for _ in range(8):  # rows of 11, 10 and 21 tokens, in blocks of 16
            llm.step()
        before = engine.counts().steps.decode_steps
        launches = llm._loaded.replicas[0].runner._launches
        files = driver.call(lambda: files_run(lambda: (engine.step(), launches.wait())))
        assert engine.counts().steps.decode_steps == before + 1
    assert len(files) <= MOST_HOST_FILES, files
    assert files == listed_in_docs("host")


@pytest.mark.parametrize("backend", ["xla", "mosaic"])
def test_a_decode_program_is_made_of_few_files(backend):
    import_all(backend)
    program = program_of(_programs(backend), DecodeShape(4, 64))
    files = files_run(functools.partial(trace_for_h200, program.function, *program.arguments))
    assert len(files) <= MOST_FILES[backend], files
    if backend == "xla":
        assert files == listed_in_docs("device")


def test_a_sampler_adds_few_files_to_its_step():
    programs, shape = _programs("xla"), DecodeShape(4, 64)
    forward, sampled = (
        files_run(functools.partial(trace_for_h200, program.function, *program.arguments))
        for key in (shape, SampledDecodeKey(shape, "temperature"))
        for program in (program_of(programs, key),)
    )
    added = sorted(set(sampled) - set(forward))
    assert "serving/sampling/sampler.py" in added
    assert len(added) <= MOST_SAMPLER_FILES, added


def listed_in_docs(side: str) -> list[str]:
    """The files in one of the two tables of docs/reading.md, sorted."""
    page = (PACKAGE.parent / "docs/reading.md").read_text()
    table = page.partition(f"| {side}: ")[2].partition("\n\n")[0]
    return sorted(re.findall(r"`jaxinfer/([\w/]+\.py)`", table))


def _programs(backend: str) -> Programs:
    mesh, rules = make_mesh(1), ShardingRules()
    context = StepContext(CONFIG, mesh, rules, Kernels(backend), block_size=16, dtype="bfloat16")
    params = abstract_params(CONFIG, jnp.bfloat16, mesh, rules)
    return Programs(context, params, num_blocks=2000, num_slots=17)
