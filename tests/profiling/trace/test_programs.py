"""Instructions of a compiled program have a part."""

from jaxinfer.profiling.trace.programs import read_program

_TEXT = """HloModule jit_decode_step, is_scheduled=true, entry_computation_layout={()->f32[4,8]{1,0}}

%fused (param_0: f32[4,16], param_1: f32[8,16]) -> f32[4,8] {
  %param_0 = f32[4,16]{1,0} parameter(0)
  %param_1 = f32[8,16]{1,0} parameter(1)
  ROOT %dot.1 = f32[4,8]{1,0} dot(%param_0, %param_1), lhs_contracting_dims={1}, rhs_contracting_dims={1}, metadata={op_name="jit(decode_step)/qkv/dot_general"}
}

ENTRY %main (x: f32[4,16], w: f32[8,16]) -> f32[4,8] {
  %x = f32[4,16]{1,0} parameter(0)
  %w = bf16[8,16]{1,0} parameter(1)
  %norm_fusion = f32[4,16]{1,0} fusion(%x), kind=kLoop, calls=%other, metadata={op_name="jit(decode_step)/qkv/norm/mul"}
  %copy.3 = f32[4,16]{0,1} copy(%norm_fusion)
  %gemm_fusion = f32[4,8]{1,0} fusion(%copy.3, %w), kind=kOutput, calls=%fused, metadata={op_name="jit(decode_step)/rope_and_write/mul"}
  %attend = f32[4,8]{1,0} custom-call(%gemm_fusion), custom_call_target="mosaic_gpu_v2", metadata={op_name="jit(decode_step)/attention/paged_decode_attention/ffi_call"}
  %cublas = (f32[4,8]{1,0}, s8[1024]{0}) custom-call(%attend, %w), custom_call_target="__cublas$gemm", metadata={op_name="jit(decode_step)/o/dot_general"}, backend_config={"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"]}}}
  ROOT %inputs = f32[4,8]{1,0} add(%attend, %attend), metadata={op_name="jit(decode_step)/add"}
}
"""  # noqa: E501
MODULE, PARTS = read_program(_TEXT)


def test_the_module_is_named_as_in_a_trace():
    assert MODULE == "jit_decode_step"


def test_the_innermost_name_is_the_part():
    assert PARTS["norm_fusion"] == "norm"
    assert PARTS["attend"] == "attention"


def test_a_fusion_has_the_part_of_the_product_that_it_holds():
    assert PARTS["gemm_fusion"] == "qkv"


def test_a_call_of_cublas_is_a_product():
    assert PARTS["cublas"] == "o"


def test_what_xla_adds_has_the_part_of_its_reader():
    assert PARTS["copy.3"] == "qkv"


def test_a_name_that_is_no_part_stays_without():
    assert PARTS["inputs"] is None
