"""A kind of program is one file and one line of the registry: nothing else tells kinds apart."""

import ast
import dataclasses
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import jaxinfer
from jaxinfer.kernels.policy import Kernels
from jaxinfer.serving.compile import lowering
from jaxinfer.serving.compile.lowering import Lowering
from jaxinfer.serving.compile.program_store import ProgramStore
from jaxinfer.serving.compile.tracing_worker import make_task
from jaxinfer.serving.programs.choose_buckets import choose_buckets
from jaxinfer.serving.programs.kinds.kind import ProgramKind
from jaxinfer.serving.programs.kinds.registry import KINDS
from jaxinfer.serving.programs.layout import DecodeShape
from jaxinfer.serving.programs.program_set import (
    all_programs,
    largest_programs,
    options_of,
    program_of,
    uses_pages,
)
from jaxinfer.serving.programs.programs import WHOLE
from jaxinfer.serving.runner.ahead_of_time import run_warm
from tests.serving.compile.test_lowering import _programs
from tests.serving.runner.tiny_runner import make_runner

_BUCKETS = choose_buckets(
    max_num_seqs=64,
    max_num_batched_tokens=1024,
    max_model_len=40_960,
    block_size=16,
    platform="gpu",
    rows_in_item=64,
)


@dataclasses.dataclass(frozen=True)
class AddKey:
    """Adds numbers to the newest tokens of all slots."""

    shape: DecodeShape
    numbers: tuple[int, ...]


class AddKind(ProgramKind[AddKey]):
    key_type = AddKey
    uses_pages = False
    runs_user_code = True

    def keys(self, buckets, *, swaps):
        return [AddKey(shape, (1, 2)) for shape in buckets.decode_shapes() if swaps]

    def largest(self, buckets, kernels):
        return self.keys(buckets, swaps=True)[-1:]

    def program(self, programs, key):
        return programs.sharded(
            "add",
            lambda tokens: tokens + sum(key.numbers),
            (programs.last_tokens,),
            WHOLE,
            donate=(0,),
        )

    def options(self, key, *, num_devices):
        return {"xla_gpu_rows": key.shape.rows * num_devices}

    def kernels(self, key):
        return key.shape

    def num_warm_up_runs(self, key):
        return 2

    def warm_up(self, programs, key, call, resident):
        return resident._replace(last_tokens=call(resident.last_tokens))


_KEY = AddKey(DecodeShape(4, 8), (1, 2))


@pytest.fixture(autouse=True)
def add_kind(monkeypatch):
    monkeypatch.setitem(KINDS, AddKey, AddKind())


def test_its_programs_belong_to_the_engines():
    shapes = _BUCKETS.decode_shapes()
    keys = [key for key in all_programs(_BUCKETS, swaps=True) if isinstance(key, AddKey)]
    assert [key.shape for key in keys] == shapes
    assert AddKey(shapes[0], (1, 2)) not in all_programs(_BUCKETS, swaps=False)
    assert AddKey(shapes[-1], (1, 2)) in largest_programs(_BUCKETS, Kernels("mosaic"))
    assert not uses_pages(_KEY)


def test_it_is_compiled_with_its_options_on_a_gpu_only():
    gpu = options_of(_KEY, platform="gpu", num_devices=2)
    assert gpu == {"xla_gpu_autotune_level": 1, "xla_gpu_rows": 8}
    assert options_of(_KEY, platform="cpu", num_devices=2) == {}


def test_it_is_lowered_through_the_store_but_with_a_callers_function(tmp_path):
    first, second, third = (Lowering(ProgramStore(tmp_path)) for _ in range(3))
    written, read = first.lower(_programs(), _KEY, {}), second.lower(_programs(), _KEY, {})
    assert written.as_text() == read.as_text()
    assert (first.num_traced, second.num_read) == (1, 1)
    third.lower(_programs(logits_processor=lambda logits, state: logits), _KEY, {})
    assert (third.num_traced, third.num_read) == (1, 0)


@pytest.mark.parametrize("is_slow", [False, True])
def test_it_goes_to_workers_where_it_is_slow_to_trace(tmp_path, monkeypatch, is_slow):
    class Workers:
        def __init__(self, store):
            pass

        def start(self, programs, work, *, platform):
            self.identities = list(work.values())

        def next_traced(self):
            return self.identities.pop()

    monkeypatch.setattr(lowering, "TracingWorkers", Workers)
    monkeypatch.setattr(AddKind, "is_slow_to_trace", is_slow)
    programs = _programs()
    programs = dataclasses.replace(
        programs, context=dataclasses.replace(programs.context, kernels=Kernels("mosaic"))
    )
    mine = Lowering(ProgramStore(tmp_path))
    assert list(mine.as_ready(programs, [_KEY])) == [_KEY]
    assert isinstance(mine._workers, Workers) is is_slow


_WORKER = """
import pickle, sys
from jaxinfer.serving.programs.kinds.registry import KINDS
from jaxinfer.serving.compile.tracing_worker import trace
from tests.serving.programs.kinds.test_registry import AddKey, AddKind
KINDS[AddKey] = AddKind()
trace(pickle.load(sys.stdin.buffer))
"""


def test_another_process_traces_it(tmp_path):
    store, programs = ProgramStore(tmp_path), _programs()
    identity = lowering._identity(programs, _KEY, program_of(programs, _KEY))
    task = make_task(programs, {_KEY: identity}, store=store, platform="cpu")
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run(
        [sys.executable, "-c", _WORKER],
        env=environment,
        input=pickle.dumps(task),
        stdout=subprocess.PIPE,
        check=True,
    )
    assert ran.stdout.decode().split() == [identity]
    mine = Lowering(store)
    mine.lower(programs, _KEY, {})
    assert (mine.num_traced, mine.num_read) == (0, 1)


def test_it_is_warmed_up():
    runner = make_runner()
    run_warm(runner._plan, runner._config, runner.launcher, [_KEY], "a CPU")
    assert np.asarray(runner.resident.last_tokens).tolist() == [2 * 3] * 5


def _compared(source):
    """Names of classes by which a module tells objects apart."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.MatchClass(cls=compared) | ast.MatchValue(value=compared):
                pass
            case ast.Call(func=ast.Name("isinstance" | "issubclass"), args=[_, compared]):
                pass
            case ast.Compare() as compared:
                pass
            case ast.Dict(keys=classes):
                compared = ast.Tuple([each for each in classes if each])
            case _:
                continue
        names = {each.id for each in ast.walk(compared) if isinstance(each, ast.Name)}
        found |= names | {e.attr for e in ast.walk(compared) if isinstance(e, ast.Attribute)}
        found |= {e.value for e in ast.walk(compared) if isinstance(e, ast.Constant)}
    return found


def test_nothing_else_tells_kinds_apart():
    root = Path(jaxinfer.__file__).parent
    names = {key_type.__name__ for key_type in KINDS}
    found = {
        (str(path.relative_to(root)), name)
        for path in root.rglob("*.py")
        for name in _compared(path.read_text()) & names
    }
    assert not found


@pytest.mark.parametrize(
    "source",
    [
        "isinstance(key, AddKey)",
        "isinstance(key, kinds.AddKey | str)",
        "isinstance(key, (str, AddKey))",
        "type(key) is AddKey",
        "type(key) in (str, AddKey)",
        "type(key).__name__ == 'AddKey'",
        "match name:\n    case 'AddKey': pass",
        "{str: 1, AddKey: 2}[type(key)]",
        "match key:\n    case AddKey(): pass",
        "match key:\n    case str() | kinds.AddKey(numbers=()): pass",
    ],
)
def test_such_comparisons_are_found(source):
    assert "AddKey" in _compared(source)
