"""Kernels of a trace belong to the steps that launched them, and to parts."""

import pytest

from jaxinfer.profiling.device_steps import device_steps
from jaxinfer.profiling.trace.xplane import KernelEvent
from tests.profiling.synthetic import DECODE, KERNELS, PREFILL, PROGRAMS, kernel


def test_a_step_begins_with_a_forward_pass_and_holds_what_follows():
    prefill, decode = device_steps([PREFILL, DECODE], KERNELS, PROGRAMS)
    assert [each.event.name for each in prefill.kernels] == [
        *("dot.1", "Memset 3", "dot", "memcpy", "argmax")
    ]
    assert [each.event.name for each in decode.kernels] == ["dot.1", "copy", "argmax", "MemcpyH2D"]


def test_an_instruction_is_looked_up_in_the_program_of_its_own_step():
    prefill, decode = device_steps([PREFILL, DECODE], KERNELS, PROGRAMS)
    assert [each.part for each in prefill.kernels] == ["qkv", "mlp", "mlp", "other", "sample"]
    assert [each.part for each in decode.kernels] == ["mlp", "other", "sample", "other"]


def test_runs_with_numbers_are_told_apart_though_their_kernels_mix():
    events = [
        kernel("dot.1", "decode_step", 0, 10, run=7),
        kernel("dot.1", "decode_step", 20, 10, run=8),
        kernel("copy", "decode_step", 25, 10, run=7),
    ]
    first, second = device_steps([DECODE, DECODE], events, PROGRAMS)
    assert [each.event.start_ns for each in first.kernels] == [0, 25]
    assert [each.event.start_ns for each in second.kernels] == [20]


@pytest.mark.parametrize("module", ["jit_sampled_decode_step", "jit_speculative_decode_step"])
def test_runs_without_numbers_of_one_program_begin_where_its_first_instruction_comes_again(module):
    def run(start):
        return [
            KernelEvent("Memset 3", "dot.1", module, 0, start, 1),
            KernelEvent("dot.1", "dot.1", module, 0, start + 2, 10),
            KernelEvent("copy", "copy", module, 0, start + 20, 10),
            KernelEvent("MemcpyH2D", "", "", 0, start + 40, 5),
        ]

    steps = device_steps([DECODE] * 3, [*run(0), *run(100), *run(200)], PROGRAMS)
    assert [step.kernels[0].event.start_ns for step in steps] == [0, 100, 200]
    assert [len(step.kernels) for step in steps] == [4, 4, 4]


def test_time_without_a_kernel_is_a_gap_and_overlap_counts_once():
    prefill, decode = device_steps([PREFILL, DECODE], KERNELS, PROGRAMS)
    assert prefill.gaps_s == pytest.approx([190e-9])
    assert prefill.span_s == pytest.approx(1150e-9)
    assert prefill.busy_s == pytest.approx(960e-9)
    assert decode.gaps_s == pytest.approx([50e-9])


def test_a_copy_for_the_next_step_does_not_make_a_step_longer():
    _, decode = device_steps([PREFILL, DECODE], KERNELS, PROGRAMS)
    assert decode.kernels[-1].event.name == "MemcpyH2D"
    assert decode.end_ns == 2540
    assert decode.span_s == pytest.approx(240e-9)
