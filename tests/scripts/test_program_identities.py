"""An identity is of what a program computes, not of the lines that it comes from."""

import jax
import jax.numpy as jnp
import pytest

from scripts.program_identities import identity, main
from tests.kernels.h200_target import lower_for_h200

KERNEL = """
import jax
from jax.experimental.pallas import mosaic_gpu as plgpu


def function(x):
    def body(x_ref, out_ref):
        out_ref[...] = x_ref[...] + 1

    return plgpu.kernel(body, out_type=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)
"""


def lowered(source, file, size=128):
    names = {}
    exec(compile(source, file, "exec"), names)
    return lower_for_h200(names["function"], jax.ShapeDtypeStruct((size,), jnp.float32))


@pytest.fixture(scope="module")
def text():
    return lowered(KERNEL, "/here.py")


def test_lines_of_python_are_no_part_of_it(text):
    other = lowered("\n" * 40 + KERNEL, "/elsewhere.py")
    assert "/here.py" in text
    assert "/here.py" not in other
    assert identity(text) == identity(other)


def test_a_kernel_of_another_shape_and_other_operations_are(text):
    assert identity(lowered(KERNEL, "/here.py", 256)) != identity(text)
    assert identity(lowered(KERNEL.replace("+ 1", "+ 2"), "/here.py")) != identity(text)
    assert identity(lowered(KERNEL.replace(")(x)", ")(x) * 2"), "/here.py")) != identity(text)


def test_a_program_that_differs_is_named(monkeypatch, tmp_path, capsys):
    before = tmp_path / "before"
    before.write_text("aaaa decode_2\nbbbb prefill_2048\n")
    found = [("decode_2", "aaaa"), ("prefill_2048", "cccc"), ("new", "dddd")]
    monkeypatch.setattr("scripts.program_identities._identities", lambda names: found)
    assert main(["--against", str(before)]) == 1
    said = capsys.readouterr()
    assert said.err == "prefill_2048 was bbbb\nnew was not there\n"
    assert main([]) == 0
    before.write_text(said.out)
    assert main(["--against", str(before)]) == 0
