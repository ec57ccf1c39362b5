"""`import jaxinfer` is quick and offers what it promises."""

import importlib.resources
import inspect
import subprocess
import sys
import typing

import pytest

import jaxinfer
from jaxinfer import errors

HEAVY = ("jax", "flax", "orbax", "numpy", "tokenizers", "huggingface_hub", "jinja2", "tqdm")


def output_of(code):
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_importing_the_package_loads_nothing_heavy():
    code = f"import sys, jaxinfer; print([m for m in {HEAVY!r} if m in sys.modules])"
    assert output_of(code) == "[]"


@pytest.mark.parametrize("name", jaxinfer.__all__)
def test_every_public_name_is_there(name):
    assert getattr(jaxinfer, name) is getattr(jaxinfer, name)
    assert name in dir(jaxinfer)


def test_the_lazy_names_are_exactly_the_public_ones():
    assert {*jaxinfer._HOMES, "__version__"} == set(jaxinfer.__all__)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'LMM'"):
        _ = jaxinfer.LMM


def test_the_configuration_can_be_checked_without_jax():
    code = (
        "import sys; from jaxinfer import EngineConfig, SamplingParams; "
        "EngineConfig(); SamplingParams(); print('jax' in sys.modules)"
    )
    assert output_of(code) == "False"


def _classes_in(hint):
    """The package's own classes that a type hint names."""
    if isinstance(hint, type) and hint.__module__.startswith("jaxinfer"):
        return {hint}
    return {each for part in typing.get_args(hint) for each in _classes_in(part)}


@pytest.mark.parametrize("owner", [jaxinfer.LLM, jaxinfer.AsyncLLM])
def test_what_methods_take_and_return_is_public(owner):
    found = set()
    for name, member in inspect.getmembers(owner):
        function = member.fget if isinstance(member, property) else member
        if inspect.isfunction(function) and (not name.startswith("_") or name == "__init__"):
            found |= {c for h in typing.get_type_hints(function).values() for c in _classes_in(h)}
    assert {jaxinfer.RequestOutput, jaxinfer.SamplingParams} <= found
    assert {each.__name__ for each in found} <= {*jaxinfer.__all__}


def test_every_error_is_public():
    found = {name for name, each in vars(errors).items() if inspect.isclass(each)}
    assert {"JaxinferError", "StepError"} <= found <= {*jaxinfer.__all__}


def test_type_checkers_are_told_that_the_package_is_typed():
    assert importlib.resources.files(jaxinfer).joinpath("py.typed").is_file()
