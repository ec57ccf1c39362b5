"""Every Mosaic kernel still lowers for an H200, without copies of a pool and in few launches."""

import ast
import functools
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import jaxinfer.kernels
from jaxinfer.kernels.attention import op as attention
from jaxinfer.kernels.attention.pages import PagedRows, Pages
from jaxinfer.kernels.attention.partial import partial_attention
from jaxinfer.kernels.attention.shared_prefix import SharedPrefixes
from jaxinfer.kernels.collectives.mosaic import all_reduce
from jaxinfer.kernels.experts.codes import QuantizedExperts
from jaxinfer.kernels.experts.op import mix_add, route
from jaxinfer.kernels.fp8 import FP8
from jaxinfer.kernels.matmul.mosaic import large, medium, medium_codes, small
from jaxinfer.kernels.matmul.op import ResidualStream
from jaxinfer.kernels.matmul.quantized import QuantizedLinear
from jaxinfer.kernels.norms.mosaic import add_norm, add_norm_codes, silu_mul
from jaxinfer.kernels.policy import Kernels
from tests import hlo
from tests.kernels.h200_target import compile_for_h200, h200_mesh, needs_plugin

B, H, K, D, S, W, P, E, F = 16, 16, 8, 128, 16, 64, 500, 1024, 3072
_SOURCES = Path(jaxinfer.kernels.__file__).parent


def _shape(*shape, dtype=jnp.bfloat16):
    return jax.ShapeDtypeStruct(shape, dtype)


def _int32(*shape):
    return _shape(*shape, dtype=jnp.int32)


def _pages(dtype=jnp.bfloat16):
    return Pages(*[_shape(P, S, K, D, dtype=dtype)] * 2)


def _attention(tokens, rows, width, pages=None, **options):
    op = functools.partial(
        attention.paged_attention, scale=D**-0.5, kernels=Kernels("mosaic"), **options
    )
    tables = _int32(rows + 1), _int32(rows), _int32(rows, width)
    return compile_for_h200(op, _shape(tokens, H, D), pages or _pages(), *tables)


def _partial(tokens, rows, width, pages=None, *, decodes=False, heads=H):
    def op(q, pages, offsets, contexts, tables):
        of = PagedRows(contexts, tables, None if decodes else offsets)
        return partial_attention(q, pages, of, scale=D**-0.5, kernels=Kernels("mosaic"))

    tables = _int32(rows + 1), _int32(rows), _int32(rows, width)
    return compile_for_h200(op, _shape(tokens, heads, D), pages or _pages(), *tables)


def _decode_shared(rows, width, pages=None):
    def op(*arguments):
        *arguments, shared = arguments
        return attention.paged_attention(
            *arguments, scale=D**-0.5, max_query_len=1, shared=shared, kernels=Kernels("mosaic")
        )

    shared = SharedPrefixes(_int32(1), _int32(160, 4), _int32(rows, 4))
    arguments = (_shape(rows, H, D), pages or _pages(), _int32(rows + 1), _int32(rows))
    return compile_for_h200(op, *arguments, _int32(rows, width), shared)


def _page_write(*heads, norms=True, pages=None):
    op = functools.partial(attention.norm_rope_write, eps=1e-6, kernels=Kernels("mosaic"))
    vector, row = _shape(D) if norms else None, _shape(B, D)
    heads = tuple(_shape(B, n, D) for n in heads)
    arguments = (heads, vector, vector, row, row, pages or _pages())
    return compile_for_h200(op, *arguments, _int32(B), donate=(5,))


def _small_plain():
    op = functools.partial(small.norm_project, eps=1e-6)
    weights = (_shape(H * D, E), _shape(K * D, E), _shape(K * D, E))
    return compile_for_h200(op, _shape(B, E), _shape(E), weights)


def _small_gated():
    op = functools.partial(small.norm_gated, eps=1e-6)
    return compile_for_h200(op, _shape(B, E), _shape(E), _shape(F, E), _shape(F, E))


def _small_residual():
    return compile_for_h200(small.project_add, _shape(B, F), _shape(E, F), _shape(B, E))


def _small_bare():
    return compile_for_h200(small.project, _shape(B, F), _shape(E, F))


def _add_norm():
    op = functools.partial(add_norm.add_norm, eps=1e-6)
    return compile_for_h200(op, _shape(2048, E), _shape(2048, E), _shape(E))


def _add_norm_codes():
    op = functools.partial(add_norm_codes.add_norm_codes, eps=1e-6)
    return compile_for_h200(op, _shape(2048, E), _shape(E), _shape(2048, E))


def _silu_mul():
    return compile_for_h200(silu_mul.silu_mul, _shape(2048, F), _shape(2048, F))


def _wide_project():
    weights = (_shape(H * D, E), _shape(K * D, E), _shape(K * D, E))
    return compile_for_h200(medium.project, _shape(64, E), weights)


def _wide_gated():
    return compile_for_h200(medium.gated, _shape(256, E), _shape(F, E), _shape(F, E))


def _low_rank(rows, ranks, *weights):
    slots, owners, counts = (
        _shape(*shape, dtype=jnp.int32) for shape in ((rows,), (ranks,), (4, 2))
    )
    return medium.LowRank(_shape(ranks, E), weights, slots, owners, counts)


def _low_rank_project():
    low_rank = _low_rank(256, 128, _shape(H * D, 64), _shape(K * D, 64))
    weights = _shape(H * D, E), _shape(K * D, E)
    return compile_for_h200(medium.project, _shape(256, E), weights, low_rank)


def _low_rank_gated():
    low_rank = _low_rank(16, 128, _shape(F, 64), _shape(F, 64))
    return compile_for_h200(medium.gated, _shape(16, E), _shape(F, E), _shape(F, E), low_rank)


def _large_project():
    weights = [_of_blocks(H * D, E), _of_blocks(K * D, E), _of_blocks(K * D, E)]
    return compile_for_h200(large.project, _shape(2048, E), weights)


def _large_gated():
    return compile_for_h200(large.gated, _shape(520, E), _of_blocks(F, E), _of_blocks(F, E))


def _codes_project():
    return compile_for_h200(medium_codes.project, _shape(64, E), [_of_blocks(F, E)])


def _codes_gated():
    return compile_for_h200(medium_codes.gated, _shape(64, E), _of_blocks(F, E), _of_blocks(F, E))


def _small_residual_in_4_bits():
    weight = _of_4_bits(E, F)
    return compile_for_h200(small.project_add, _shape(16, F), weight, _shape(16, E))


def _codes_gated_in_4_bits():
    weight = _of_4_bits(F, E)
    return compile_for_h200(medium_codes.gated, _shape(256, E), weight, weight)


def _of_4_bits(outputs, inputs):
    """With zero points."""
    groups = outputs, inputs // 128
    codes, zero = _shape(outputs, inputs // 2, dtype=jnp.uint8), _shape(*groups, dtype=jnp.uint8)
    return QuantizedLinear(codes, _shape(*groups, dtype=jnp.float32), zero)


def _of_blocks(outputs, inputs):
    scale = _shape(outputs // 128, inputs // 128, dtype=jnp.float32)
    return QuantizedLinear(_shape(outputs, inputs, dtype=FP8), scale, inputs="group")


# A program for each kernel: what compiles it, and every Mosaic kernel that it launches.
def _all_reduce(*norm):
    """Onto a residual stream, followed by a norm if there is a weight for it."""
    mesh = h200_mesh(2)
    whole, split = PartitionSpec(), PartitionSpec("tensor")

    def add_up(x, onto, peers, *weights):
        if weights:
            return all_reduce.all_reduce_norm(x, peers[0], onto, *weights, eps=1e-6)
        return all_reduce.all_reduce(x, peers[0], onto=onto)

    specs = (whole, whole, split, *[whole] * len(norm))
    run = jax.shard_map(add_up, mesh=mesh, in_specs=specs, out_specs=whole, check_vma=False)
    shapes = [_shape(64, E), _shape(64, E), _int32(2, 2, 2), *norm]
    placed = [
        jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(mesh, spec))
        for x, spec in zip(shapes, specs, strict=True)
    ]
    return jax.jit(run).trace(*placed).lower(lowering_platforms=("cuda",)).compile()


def _experts(rows, matrix=_shape, *, anew=False):
    """A layer of Qwen3-30B-A3B's shape, whose experts may have other numbers in `mix_add`."""
    experts, hidden, width = 128, 2048, 768
    matrices = (matrix(experts, width, hidden),) * 2 + (matrix(experts, hidden, width),)

    def layer(x, norm, router, *matrices):
        kernels = Kernels("mosaic")
        routed = route(
            ResidualStream(x), norm, router, 8, normalize=True, eps=1e-6, kernels=kernels
        )
        routed = routed.renumbered(experts - 1 - routed.chosen) if anew else routed
        return mix_add(routed, norm, matrices, eps=1e-6, kernels=kernels).summed()

    return compile_for_h200(
        layer, _shape(rows, hidden), _shape(hidden), _shape(experts, hidden), *matrices
    )


def _expert_codes(experts, outputs, inputs):
    scale = _shape(experts, outputs // 128, inputs // 128, dtype=jnp.float32)
    return QuantizedExperts(_shape(experts, outputs, inputs, dtype=FP8), scale)


_PROGRAMS = {
    "decode_many_rows": (
        functools.partial(_attention, 256, 256, 4 * W, max_query_len=1),
        {"paged_decode_attention": 1},
    ),
    "decode_one_row": (
        functools.partial(_attention, 1, 1, 8 * W, max_query_len=1),
        {"paged_decode_attention": 1, "combine_splits": 1},
    ),
    "decode_one_short_row": (
        functools.partial(_attention, 1, 1, 1024 // 16, max_query_len=1),
        {"paged_decode_attention": 1},
    ),
    "decode_shared": (
        functools.partial(_decode_shared, 256, 4 * W),
        {"attend_own": 1, "attend_shared": 1},
    ),
    "decode_window": (
        functools.partial(_attention, 256, 256, 4 * W, max_query_len=1, window=100),
        {"paged_decode_attention": 1},
    ),
    "prefill": (functools.partial(_attention, 256, B, W), {"paged_prefill_attention": 1}),
    "prefill_window": (
        functools.partial(_attention, 256, B, W, window=100),
        {"paged_prefill_attention": 1},
    ),
    "partial_decode_one_row": (
        functools.partial(_partial, 1, 1, 8 * W, decodes=True),
        {"paged_decode_attention": 1, "combine_partly": 1},
    ),
    "partial_decode_many_rows": (
        functools.partial(_partial, 256, 256, 4 * W, decodes=True),
        {"paged_decode_attention": 1, "combine_partly": 1},
    ),
    "partial_decode_fp8": (
        functools.partial(_partial, 16, 16, W, _pages(FP8), decodes=True),
        {"paged_decode_attention": 1, "combine_partly": 1},
    ),
    "partial_prefill": (functools.partial(_partial, 256, B, W), {"paged_prefill_attention": 1}),
    "partial_prefill_odd_group": (
        functools.partial(_partial, 256, B, W, heads=K),
        {"paged_prefill_attention": 1},
    ),
    "partial_prefill_fp8": (
        functools.partial(_partial, 256, B, W, _pages(FP8)),
        {"paged_prefill_attention": 1},
    ),
    "page_write": (functools.partial(_page_write, H, K, K), {"norm_rope_write": 1}),
    "page_write_plain": (
        functools.partial(_page_write, H, K, K, norms=False),
        {"norm_rope_write": 1},
    ),
    "page_write_merged": (functools.partial(_page_write, H + 2 * K), {"norm_rope_write": 1}),
    "page_write_fp8": (
        functools.partial(_page_write, H, K, K, pages=_pages(FP8)),
        {"norm_rope_write": 1},
    ),
    "decode_fp8": (
        functools.partial(_attention, 256, 256, 4 * W, _pages(FP8), max_query_len=1),
        {"paged_decode_attention": 1},
    ),
    "decode_shared_fp8": (
        functools.partial(_decode_shared, 256, 4 * W, _pages(FP8)),
        {"attend_own": 1, "attend_shared": 1},
    ),
    "prefill_fp8": (
        functools.partial(_attention, 256, B, W, _pages(FP8)),
        {"paged_prefill_attention": 1},
    ),
    "small_plain": (_small_plain, {"small_plain": 1}),
    "small_gated": (_small_gated, {"small_gated": 1}),
    "small_residual": (_small_residual, {"small_residual": 1}),
    "small_bare": (_small_bare, {"small_bare": 1}),
    "small_residual_in_4_bits": (_small_residual_in_4_bits, {"small_residual": 1}),
    "medium_project": (_wide_project, {"medium_project": 1}),
    "medium_gated": (_wide_gated, {"medium_gated": 1}),
    "medium_project_low_rank": (_low_rank_project, {"medium_project_low_rank": 1}),
    "medium_gated_low_rank": (_low_rank_gated, {"medium_gated_low_rank": 1}),
    "medium_codes_project": (_codes_project, {"quantize_groups": 1, "medium_codes_project": 1}),
    "medium_codes_gated": (_codes_gated, {"quantize_groups": 1, "medium_codes_gated": 1}),
    "medium_codes_gated_in_4_bits": (_codes_gated_in_4_bits, {"medium_codes_gated": 1}),
    "large_project": (_large_project, {"large_project": 1, "quantize_groups": 1}),
    "large_gated": (_large_gated, {"large_gated": 1, "quantize_groups": 1}),
    "experts_few": (
        functools.partial(_experts, 8),
        {"small_plain": 1, "choose_and_list": 1, "few_rows_gated": 1, "few_rows_down": 1},
    ),
    "experts_few_numbered_anew": (
        functools.partial(_experts, 8, anew=True),
        {"small_plain": 1, "choose_experts": 1, "list_experts": 1}
        | {"few_rows_gated": 1, "few_rows_down": 1},
    ),
    "experts_many": (
        functools.partial(_experts, 64),
        {"choose_experts": 1, "place_rows": 1, "experts_fused": 1},
    ),
    "experts_many_numbered_anew": (
        functools.partial(_experts, 136, anew=True),
        {"choose_experts": 1, "place_rows": 1, "experts_fused": 1},
    ),
    "experts_of_a_prompt": (
        functools.partial(_experts, 264),
        {"choose_experts": 1, "spread_rows": 1, "experts_gated": 1, "experts_project": 1},
    ),
    "experts_few_codes": (
        functools.partial(_experts, 8, _expert_codes),
        {"small_plain": 1, "choose_and_list": 1}
        | {"few_rows_codes_gated": 1, "few_rows_codes_down": 1},
    ),
    "experts_many_codes": (
        functools.partial(_experts, 64, _expert_codes),
        {"choose_experts": 1, "place_rows": 1, "experts_codes_fused": 1},
    ),
    "experts_of_a_prompt_codes": (
        functools.partial(_experts, 264, _expert_codes),
        {"choose_experts": 1, "spread_codes": 1}
        | {"experts_codes_gated": 1, "experts_codes_project": 1},
    ),
    "add_norm": (_add_norm, {"add_norm": 1}),
    "add_norm_codes": (_add_norm_codes, {"add_norm_codes": 1}),
    "silu_mul": (_silu_mul, {"silu_mul": 1}),
    "all_reduce": (_all_reduce, {"all_reduce": 1}),
    "all_reduce_norm": (functools.partial(_all_reduce, _shape(E)), {"all_reduce_norm": 1}),
}


@needs_plugin
@pytest.mark.parametrize("name", _PROGRAMS)
def test_each_program_launches_its_kernels_once(name):
    build, kernels = _PROGRAMS[name]
    assert hlo.mosaic_kernels(build().as_text()) == kernels


@needs_plugin
@pytest.mark.parametrize("heads", [(H, K, K), (H + 2 * K,)])
def test_page_write_aliases_the_donated_pools(heads):
    compiled = _page_write(*heads)
    pool_bytes = 2 * P * S * K * D * 2
    assert compiled.memory_analysis().alias_size_in_bytes >= pool_bytes
    assert compiled.memory_analysis().temp_size_in_bytes < pool_bytes / 100
    assert "copy" not in compiled.as_text()


def test_no_copy_that_a_barrier_counts_has_a_predicate():
    """Where one is left out, jax 0.11 arrives on the barrier and 0.12 does not: a kernel spins."""
    calls = [
        (path.name, call)
        for path in _SOURCES.rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call) and ast.unparse(call.func).endswith("copy_gmem_to_smem")
    ]
    assert len(calls) >= 8
    for name, call in calls:
        given = {keyword.arg for keyword in call.keywords}
        assert "predicate" not in given, f"{name}:{call.lineno}: call copy_or_arrive"


# Launched by `warpgroup.py`, whose kernels have their callers' names.
_NAMED_BY_CALLERS = {
    "warpgroup.py": [],
    "lists.py": ["list_experts", "choose_and_list"],
}


def test_no_kernel_is_left_out_above():
    launched = {kernel for _, kernels in _PROGRAMS.values() for kernel in kernels}
    found = 0
    for path in _SOURCES.rglob("*.py"):
        source = path.read_text()
        # An f-string's name is known up to its first brace, a conditional one by its first value.
        names = re.findall(r'kernel_name=f?"(\w+)', source)
        launches = source.count("plgpu.kernel(")
        if path.name in _NAMED_BY_CALLERS:  # of one launch
            names = [name for name in _NAMED_BY_CALLERS[path.name] if f'"{name}"' in source]
            launches = len(_NAMED_BY_CALLERS[path.name])
        assert len(names) == launches, f"{path.name}: a kernel without a name"
        for name in names:
            assert any(kernel.startswith(name) for kernel in launched), f"{path.name}: {name}"
        found += len(names)
    assert found >= 10


@needs_plugin
def test_programs_that_share_a_kernel_name_it_alike():
    hashes = []
    for scale in (1.0, 2.0):  # two programs
        program = compile_for_h200(
            lambda x, delta, norm, scale=scale: add_norm.add_norm(x * scale, delta, norm, eps=1e-6),
            *(_shape(2048, E), _shape(2048, E), _shape(E)),
        )
        hashes += re.findall(r'kernel_hash = ("(?:[^"\\]|\\.)*")', program.as_text())
    assert len(hashes) == 2
    assert hashes[0] == hashes[1]
