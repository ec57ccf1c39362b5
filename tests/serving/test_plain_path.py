"""The plain path goes through few lines, which a reader can follow in one sitting.

What counts is all lines of the files that run, since a reader has to open them. Overlap, halves of
a prefill, swapping, slot edits and recovery stand beside this path: their files run only when they
are needed. The steps are those of one device, between two borders of blocks.
"""

import functools
import json
import subprocess
import sys

import jax.numpy as jnp
import pytest

from jaxinfer.kernels.implementations import import_all
from jaxinfer.kernels.policy import Kernels
from jaxinfer.model.modules import abstract_params
from jaxinfer.model.sharding import ShardingRules, make_mesh
from jaxinfer.serving.programs.kinds.sampled_decode import SampledDecodeKey
from jaxinfer.serving.programs.layout import DecodeShape
from jaxinfer.serving.programs.program_set import program_of
from jaxinfer.serving.programs.programs import Programs
from jaxinfer.serving.programs.steps import StepContext
from scripts.reading import page
from scripts.reading.plain_path import PlainPath
from scripts.reading.trace import Called, files_of, lines_of, trace
from tests.kernels.h200_target import trace_for_h200
from tests.model import tiny

MOST_HOST_LINES = 2648
MOST_DEVICE_LINES = 2445
MOST_GENERATE_LINES = 8007
MOST_MOSAIC_LINES = 4503
MOST_SAMPLER_LINES = 1120

UNSAID = ("serving/runner/", "serving/threads/", "model/", "kernels/")
"""Rooms where private functions on the path may be without a sentence."""

CONFIG = tiny.config(
    hidden_size=1024,
    intermediate_size=3072,
    num_attention_heads=16,
    num_key_value_heads=8,
    head_dim=128,
    num_hidden_layers=2,
)


@functools.cache
def plain_path() -> PlainPath:
    """In a process of its own, where nothing that the path calls is cached."""
    command = [sys.executable, "-m", "scripts.reading", "--json"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True, cwd=page.ROOT)
    parts = json.loads(printed.stdout)
    return PlainPath(*([Called(*each) for each in parts[name]] for name in PlainPath._fields))


@pytest.mark.slow("each")
@pytest.mark.parametrize(
    ("part", "most_lines"),
    [
        ("host", MOST_HOST_LINES),
        ("device", MOST_DEVICE_LINES),
        ("generate", MOST_GENERATE_LINES),
    ],
    ids=["host", "device", "generate"],  # without numbers, which change
)
def test_the_files_that_run_have_few_lines(part, most_lines):
    files = files_of(getattr(plain_path(), part))
    sizes = {file: lines_of([file]) for file in files}
    print(*(f"{size:6} {file}" for file, size in sizes.items()), sep="\n")
    assert sum(sizes.values()) <= most_lines


@pytest.mark.slow("alone")
@pytest.mark.parametrize("part", PlainPath._fields)
def test_the_trace_sees_the_path(part):
    names = {called.name for called in getattr(plain_path(), part)}
    known = {
        "host": {
            "StepUpdates.update",
            "BatchBuilder.build",
            "Runner.fetch",
            "OpenRequests.take_step",
        },
        "device": {"decode_step", "decoder_layer", "paged_attention"},
        "generate": {"LLM.generate", "BlockPool.allocate", "RequestGroup.output"},
    }
    assert known[part] <= names


@pytest.mark.slow("alone")
def test_the_page_that_lists_the_path_is_up_to_date():
    text = page.PAGE.read_text()
    ran = page.listed(page.with_path(text, plain_path()))
    assert len(ran) > 200
    assert page.listed(text) == ran, "run python -m scripts.reading"


@pytest.mark.slow("alone")
def test_what_runs_on_the_path_says_what_it_does():
    silent = {
        f"{called.file}: {called.name}"
        for part in plain_path()
        for called in part
        if not called.file.startswith(UNSAID) and not page.definition_of(called).sentence
    }
    assert silent == set()


@pytest.mark.slow("alone")
def test_readme_says_the_size_of_the_path():
    readme = page.README.read_text()
    assert page.numbers_of(readme) == pytest.approx(
        page.numbers_of(page.with_core_sentence(readme, plain_path())), rel=0.1
    )


def test_a_decode_program_of_mosaic_kernels_is_made_of_few_lines():
    import_all("mosaic")
    program = program_of(_programs("mosaic"), DecodeShape(4, 64))
    called = trace(lambda: trace_for_h200(program.function, *program.arguments))
    files = files_of(called)
    assert any("/mosaic/" in file for file in files)
    assert lines_of(files) <= MOST_MOSAIC_LINES, lines_of(files)


def test_a_sampler_adds_few_lines_to_its_step():
    programs, shape = _programs("xla"), DecodeShape(4, 64)
    keys = (shape, SampledDecodeKey(shape, "temperature"))
    forward, sampled = (
        files_of(trace(lambda: trace_for_h200(program.function, *program.arguments)))  # noqa: B023
        for program in (program_of(programs, key) for key in keys)
    )
    added = sorted(set(sampled) - set(forward))
    assert "serving/sampling/sampler.py" in added
    assert lines_of(added) <= MOST_SAMPLER_LINES, added


def _programs(backend: str) -> Programs:
    mesh, rules = make_mesh(1), ShardingRules()
    context = StepContext(CONFIG, mesh, rules, Kernels(backend), block_size=16, dtype="bfloat16")
    params = abstract_params(CONFIG, jnp.bfloat16, mesh, rules)
    return Programs(context, params, num_blocks=2000, num_slots=17)
