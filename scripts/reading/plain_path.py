"""The plain path: a decode step on the host and on a device, and a whole `LLM.generate`.

One device, greedy rows, one step of a launch, programs that were compiled before, and a decode step
between two borders of blocks: what has anything beside it runs further files.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxinfer import LLM, RequestOutputKind, SamplingParams
from jaxinfer.kernels.implementations import import_all
from jaxinfer.kernels.policy import Kernels
from jaxinfer.model.modules import abstract_params
from jaxinfer.model.sharding import ShardingRules, make_mesh
from jaxinfer.serving.programs.layout import DecodeShape
from jaxinfer.serving.programs.program_set import program_of
from jaxinfer.serving.programs.programs import Programs
from jaxinfer.serving.programs.steps import StepContext
from jaxinfer.testing import TINY_CONFIG, tiny_llm
from scripts.reading.trace import Called, trace

_PROMPTS = [[1, 2, 3], [4, 5], [6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18]]


class PlainPath(NamedTuple):
    """What runs on the plain path, in order of call.

    Attributes:
        host: a decode step on the host, from the engine's `step` until it is launched.
        device: what the program of a decode step is traced from, with plain XLA.
        generate: a whole `LLM.generate` of a few prompts, all threads together.
    """

    host: list[Called]
    device: list[Called]
    generate: list[Called]


def plain_path() -> PlainPath:
    """Run and trace it; in a fresh process, since what is cached does not run again."""
    with tiny_llm(num_decode_steps=1) as llm:
        host = trace_host_step(llm)
        generate = trace_generate(llm)
    return PlainPath(host, trace_device_step(), generate)


def trace_host_step(llm: LLM) -> list[Called]:
    """The functions of one decode step of a few greedy rows."""
    params = SamplingParams(
        temperature=0.0,
        max_tokens=30,
        ignore_eos=True,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )
    (replica,), driver = llm._loaded.replicas, llm._handle.driver
    for i, prompt in enumerate(_PROMPTS):
        llm.add_request(str(i), {"prompt_token_ids": prompt}, params)
    for _ in range(8):  # rows of 11, 10 and 21 tokens, in blocks of 16
        llm.step()
    before = replica.engine.counts().steps.decode_steps

    def step() -> None:
        replica.engine.step()
        replica.runner.launches.wait()  # which is no part of a step

    called = driver.call(lambda: trace(step))
    if replica.engine.counts().steps.decode_steps != before + 1:
        raise RuntimeError("the step that was traced is no decode step")
    llm.abort_request([str(i) for i in range(len(_PROMPTS))])
    while llm.has_unfinished_requests():
        llm.step()
    return [each for each in called if each.name != "WorkerThread.wait"]


def trace_generate(llm: LLM) -> list[Called]:
    """The functions of a generation whose programs have run before."""
    prompts = [{"prompt_token_ids": prompt} for prompt in _PROMPTS]
    params = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
    driver = llm._handle.driver

    def generate() -> None:
        llm.generate(prompts, params, use_tqdm=False)
        driver.call(lambda: None)  # until the engine's thread has done the last step's work

    generate()
    # On a busy machine, a caller that waits for a second sees whether the engine's thread lives.
    return [each for each in trace(generate) if each.name != "OwnerThread.is_alive"]


def trace_device_step() -> list[Called]:
    """The functions that a decode step's program is made of."""
    import_all("xla")
    mesh, rules = make_mesh(1), ShardingRules()
    context = StepContext(TINY_CONFIG, mesh, rules, Kernels("xla"), block_size=16, dtype="bfloat16")
    params = abstract_params(TINY_CONFIG, jnp.bfloat16, mesh, rules)
    programs = Programs(context, params, num_blocks=64, num_slots=5)
    program = program_of(programs, DecodeShape(4, 4))
    function: Callable[..., Any] = program.function
    return trace(lambda: jax.jit(function).trace(*program.arguments))
