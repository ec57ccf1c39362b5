"""`import jaxinfer` is quick and offers what it promises."""

import subprocess
import sys

import pytest

import jaxinfer

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
