"""An engine's programs that are found compiled are neither traced nor lowered, and run the same."""

import functools

import jax
import pytest

from jaxinfer.serving.compile import lowering as lowering_module
from jaxinfer.serving.compile.cache.executable_store import ExecutableStore
from jaxinfer.serving.compile.compilation import CompiledPrograms
from jaxinfer.serving.compile.lowering import Lowering, start_lowering
from jaxinfer.serving.compile.program_store import ProgramStore
from jaxinfer.serving.programs.kinds.sampler import SamplerKey
from tests import hlo
from tests.serving.compile.test_lowering import _programs

_KEY = SamplerKey(4, "temperature")


def _lowering(directory):
    return Lowering(ProgramStore(directory / "traced"), ExecutableStore(directory / "compiled"))


def _compile(lowering, programs, options=None):
    """As an engine does; one program."""
    lower = functools.partial(lowering.lower, programs)
    compiled = CompiledPrograms(
        lower, lambda key: options or {}, lowering.executables.written_in_background
    )
    compiled.compile([_KEY], show_progress=False)
    return compiled[_KEY]


def _code(compiled):
    return [(each.opcode, each.shape) for each in hlo.scheduled(compiled.as_text())]


def _counts(lowering):
    return lowering.num_traced, lowering.num_read, lowering.num_lowered


def test_the_second_start_finds_what_the_first_compiled(tmp_path):
    first, second = _lowering(tmp_path), _lowering(tmp_path)
    compiled, found = _compile(first, _programs()), _compile(second, _programs())
    assert _counts(first) == (1, 0, 1)
    assert _counts(second) == (0, 1, 0)
    assert _code(found) == _code(compiled)
    assert hlo.aliases(found.as_text()) == hlo.aliases(compiled.as_text())
    assert found.in_tree == compiled.in_tree
    assert found.out_tree == compiled.out_tree
    assert found.input_shardings == compiled.input_shardings


def test_where_only_the_traced_program_is_left_it_is_compiled(tmp_path):
    _compile(_lowering(tmp_path), _programs())
    for path in (tmp_path / "compiled").iterdir():
        path.unlink()
    again = _lowering(tmp_path)
    _compile(again, _programs())
    assert _counts(again) == (0, 1, 1)


@pytest.mark.parametrize(
    ("programs", "options"),
    [
        (functools.partial(_programs, blocks=65), {}),
        (functools.partial(_programs, devices=2), {}),
        (_programs, {"xla_cpu_enable_fast_math": True}),
    ],
    ids=["blocks", "devices", "options"],
)
def test_another_program_or_other_options_find_nothing(tmp_path, programs, options):
    _compile(_lowering(tmp_path), _programs())
    other = _lowering(tmp_path)
    _compile(other, programs(), options)
    # A sampler has no pages.
    assert other.num_lowered == (0 if programs().num_blocks == 65 else 1)


def test_other_flags_of_xla_find_nothing(tmp_path, monkeypatch):
    _compile(_lowering(tmp_path), _programs())
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=/nowhere")
    other = _lowering(tmp_path)
    _compile(other, _programs())
    assert _counts(other) == (0, 1, 1)


def test_a_callers_function_is_found_by_what_it_compiles_to(tmp_path):
    def at(temperature):
        return _programs(logits_processor=lambda logits, state: logits / temperature)

    counts, lowered = [], []
    for temperature in (2.0, 2.0, 3.0):
        lowering = _lowering(tmp_path)
        _compile(lowering, at(temperature))
        counts.append(len(list((tmp_path / "compiled").iterdir())))
        lowered.append(lowering.num_lowered)
        assert lowering.num_traced == 1
    assert counts == [1, 1, 2]
    assert lowered == [1, 0, 1]


def test_a_callers_function_that_calls_python_runs_as_it_is_now(tmp_path):
    def calling(seen):
        def process(logits, state):
            shape = jax.ShapeDtypeStruct(logits.shape, logits.dtype)
            return jax.pure_callback(lambda x: (seen.append(1), x)[1], shape, logits)

        return _programs(logits_processor=process)

    for _ in range(2):
        lowering = _lowering(tmp_path)
        _compile(lowering, calling([]))
        assert _counts(lowering) == (1, 0, 1)
    assert not (tmp_path / "compiled").exists()


def test_an_entry_that_can_not_be_read_is_lowered_again_by_the_thread_that_lowers(tmp_path):
    expected = _code(_compile(_lowering(tmp_path), _programs()))
    (entry,) = (tmp_path / "compiled").iterdir()
    entry.write_bytes(entry.read_bytes()[:-1])
    again = _lowering(tmp_path)
    assert _code(_compile(again, _programs())) == expected
    assert _counts(again) == (0, 2, 1)
    # Kept by the next that compiles it.
    counts = []
    for _ in range(2):
        counts.append(_lowering(tmp_path))
        _compile(counts[-1], _programs())
    assert [each.num_lowered for each in counts] == [1, 0]


def test_a_start_keeps_executables_only_where_something_is_kept(tmp_path):
    assert start_lowering(str(tmp_path), keeps=True).executables is not None
    assert start_lowering(str(tmp_path), keeps=False).executables is None
    assert start_lowering("", keeps=True).executables is None


def test_kernels_are_imported_before_a_program_that_calls_them_is_read(tmp_path, monkeypatch):
    imported = []
    monkeypatch.setattr(lowering_module, "import_all", imported.append)
    _compile(_lowering(tmp_path), _programs())
    assert imported == []
    _compile(_lowering(tmp_path), _programs())
    assert imported == ["xla"]
