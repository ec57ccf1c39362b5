"""What the reader of compiled programs counts, on a program small enough to count by hand."""

import pytest

from tests import hlo

_PROGRAM = """HloModule jit_step, is_scheduled=true

%fused_computation (param_0: f32[8,4]) -> f32[8,4] {
  %param_0 = f32[8,4]{1,0} parameter(0)
  ROOT %copy.1 = f32[8,4]{1,0} copy(%param_0)
}

%body (arg: (s32[], f32[8,4])) -> (s32[], f32[8,4]) {
  %arg = (s32[], f32[8,4]{1,0}) parameter(0)
  %x = f32[8,4]{1,0} get-tuple-element(%arg), index=1
  %kernel = f32[8,4]{1,0} custom-call(%x), custom_call_target="mosaic_gpu_v2", \
metadata={op_name="jit(step)/norm/mpmd_map"}
  %sum = ((f32[8,4]{1,0}), f32[8,4]{1,0}) all-reduce-start(%kernel)
  %done = f32[8,4]{1,0} all-reduce-done(%sum)
  ROOT %next = (s32[], f32[8,4]{1,0}) tuple(%i, %done)
}

ENTRY %main (p: f32[8,4]) -> f32[8,4] {
  %p = f32[8,4]{1,0} parameter(0)
  %fusion = f32[8,4]{1,0} fusion(%p), kind=kLoop, calls=%fused_computation
  %small = f32[2]{0} copy(%p)
  %loop = (s32[], f32[8,4]{1,0}) while(%fusion), condition=%cond, body=%body
  ROOT %out = f32[8,4]{1,0} get-tuple-element(%loop), index=1
}
"""


def test_a_fusion_is_one_launch_and_a_loops_body_counts_once():
    assert hlo.launches(_PROGRAM) == 4  # fusion, small copy, kernel, all-reduce


def test_kernels_and_exchanges_are_found_inside_loops():
    assert hlo.mosaic_kernels(_PROGRAM) == {"norm": 1}
    assert hlo.collectives(_PROGRAM) == {"all-reduce": 1}


def test_what_is_scheduled_beside_a_sum_is_found_by_its_start_and_end():
    text = """ENTRY %main (p: f32[4]) -> f32[4] {
  %p = f32[4]{0} parameter(0)
  %first = ((f32[4]{0}), f32[4]{0}) all-reduce-start(%p), to_apply=%add
  %gemm = (f32[4]{0}, s8[8]{0}) custom-call(%p), custom_call_target="__cublas$lt$matmul"
  %second = ((f32[4]{0}), f32[4]{0}) all-reduce-start(%p), to_apply=%add
  %done = f32[4]{0} all-reduce-done(%first)
  %norm = f32[4]{0} custom-call(%done), custom_call_target="mosaic_gpu_v2"
  %end = f32[4]{0} all-reduce-done(%second)
  ROOT %alone = f32[4]{0} all-reduce(%end), to_apply=%add
}
"""
    names = [[instruction.name for instruction in beside] for beside in hlo.beside_sums(text)]
    assert names == [["gemm", "second"], ["done", "norm"], []]
    products = [sum(map(hlo.is_product, beside)) for beside in hlo.beside_sums(text)]
    assert products == [1, 0, 0]


def test_copies_are_found_by_size_also_inside_fusions():
    assert hlo.copies(_PROGRAM, 32) == ["copy f32[8,4]{1,0}"]
    assert len(hlo.copies(_PROGRAM, 2)) == 2


def test_what_is_no_program_is_refused():
    with pytest.raises(ValueError, match="no ENTRY"):
        hlo.launches("module @jit_step {}")


def test_a_result_in_the_memory_of_a_parameter_is_found():
    alias = "input_output_alias={ {0}: (2, {}, may-alias), {3}: (1, {}, must-alias) }"
    assert hlo.aliases(f"HloModule jit_step, {alias}, entry={{(f32[8])}}") == {0: 2, 3: 1}
    assert hlo.aliases("HloModule jit_step, input_output_alias={ {}: (0, {}, may-alias) }") == {
        0: 0
    }
    assert not hlo.aliases(_PROGRAM)
