"""What `medium_codes_plan.choose` takes is what `medium_codes.py` can build."""

import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxinfer.kernels.matmul.mosaic.medium_codes_plan import MediumCodesPlan, choose
from jaxinfer.kernels.matmul.weight_form import GROUP, WeightForm
from jaxinfer.kernels.mosaic import registers

_FORMS = [
    WeightForm(jnp.dtype(dtype), is_grouped)
    for dtype in (jnp.int8, jnp.uint8)
    for is_grouped in (False, True)
] + [WeightForm(jnp.dtype(jnp.float8_e4m3fn), is_grouped=True, inputs="group")]


@given(
    form=st.sampled_from(_FORMS),
    B=st.integers(17, 256),
    outs=st.lists(st.integers(1, 200).map(lambda n: 128 * n), min_size=1, max_size=3),
    inputs=st.integers(1, 200).map(lambda n: GROUP * n),
    gated=st.booleans(),
)
def test_every_product_that_is_taken_can_be_built(form, B, outs, inputs, gated):
    outs = outs[:1] * 2 if gated else outs
    config = choose(B, [(n, inputs) for n in outs], jnp.bfloat16, form, matrices=1 + gated)
    outputs = tuple(outs[:: 1 + gated])
    B += -B % 8
    plan = MediumCodesPlan(B, inputs, outputs, 1 + gated, form, config)
    plan.check()
    assert 0 <= config.rows * -(-B // config.rows) - B < 8 * config.splits * 2
    sums = config.rows // 2 * (1 + form.is_grouped)  # of a thread, beside what it multiplies
    most = 128 if plan.moves_registers else 64
    assert sums <= {1: 128, 2: most, 3: 64}[config.consumers]
    assert registers.can_be_moved() or not plan.moves_registers


@pytest.mark.parametrize(("movable", "consumers"), [(True, 2), (False, 1)])
def test_gate_and_up_of_many_rows_in_4_bits_are_two_tiles_where_registers_move(
    movable, consumers, monkeypatch
):
    monkeypatch.setattr(registers, "can_be_moved", lambda: movable)
    integers = WeightForm(jnp.dtype(jnp.uint8), is_grouped=True)
    blocks = WeightForm(jnp.dtype(jnp.float8_e4m3fn), is_grouped=True, inputs="group")

    def of(form, B, matrices=2):
        shapes = [(12288, 4096)] * matrices
        return choose(B, shapes, jnp.bfloat16, form, matrices=matrices).consumers

    assert of(integers, 256) == of(integers, 136) == consumers
    assert of(integers, 128) == of(integers, 256, matrices=1) == of(blocks, 256) == 1
