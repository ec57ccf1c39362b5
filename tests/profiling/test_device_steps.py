"""Kernels of a trace belong to the steps that launched them, and to parts."""

import pytest

from jaxinfer.profiling.device_steps import device_steps
from tests.profiling.synthetic import DECODE, KERNELS, PREFILL, PROGRAMS, kernel


def test_a_step_begins_with_a_forward_pass_and_holds_what_follows():
    prefill, decode = device_steps([PREFILL, DECODE], KERNELS, PROGRAMS)
    assert [each.event.name for each in prefill.kernels] == ["dot.1", "dot", "memcpy", "argmax"]
    assert [each.event.name for each in decode.kernels] == ["dot.1", "copy", "argmax"]


def test_an_instruction_is_looked_up_in_the_program_of_its_own_step():
    prefill, decode = device_steps([PREFILL, DECODE], KERNELS, PROGRAMS)
    assert [each.part for each in prefill.kernels] == ["qkv", "mlp", "other", "sample"]
    assert [each.part for each in decode.kernels] == ["mlp", "other", "sample"]


def test_runs_with_numbers_are_told_apart_though_their_kernels_mix():
    events = [
        kernel("dot.1", "decode_step", 0, 10, run=7),
        kernel("dot.1", "decode_step", 20, 10, run=8),
        kernel("copy", "decode_step", 25, 10, run=7),
    ]
    first, second = device_steps([DECODE, DECODE], events, PROGRAMS)
    assert [each.event.start_ns for each in first.kernels] == [0, 25]
    assert [each.event.start_ns for each in second.kernels] == [20]


def test_time_without_a_kernel_is_a_gap_and_overlap_counts_once():
    prefill, decode = device_steps([PREFILL, DECODE], KERNELS, PROGRAMS)
    assert prefill.gaps_s == pytest.approx([200e-9])
    assert prefill.span_s == pytest.approx(1150e-9)
    assert prefill.busy_s == pytest.approx(950e-9)
    assert decode.gaps_s == pytest.approx([50e-9])
