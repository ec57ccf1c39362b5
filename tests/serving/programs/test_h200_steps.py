"""Whole steps, mostly Qwen3-0.6B's, compiled for H200s: in place, small, in few launches."""

import collections
import dataclasses
import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import pytest

from jaxinfer.kernels.policy import Kernels
from jaxinfer.model.adapters.device_slots import ADAPTERS, describe_slots
from jaxinfer.model.experts import Experts
from jaxinfer.model.families.table import family_of
from jaxinfer.model.modules import abstract_params
from jaxinfer.model.quantized.quantization import with_scheme
from jaxinfer.model.rope_scaling import RopeScaling
from jaxinfer.model.sharding import ShardingRules
from jaxinfer.planning.named_shapes import shape_config
from jaxinfer.serving.compile.shared_forward import SharedForward
from jaxinfer.serving.programs.adapted_layers import AdaptedLayers
from jaxinfer.serving.programs.kinds.count_tokens import CountTokensKey
from jaxinfer.serving.programs.kinds.kind import ProgramKey
from jaxinfer.serving.programs.kinds.sampled_decode import SampledDecodeKey
from jaxinfer.serving.programs.kinds.sampler import SamplerKey
from jaxinfer.serving.programs.kinds.set_edits import SetEditsKey
from jaxinfer.serving.programs.kinds.speculative_decode import SpeculativeDecodeKey
from jaxinfer.serving.programs.kinds.write_adapter import WriteAdapterKey
from jaxinfer.serving.programs.layout import DecodeShape, PrefillShape
from jaxinfer.serving.programs.peer_buffers import have_peer_buffers
from jaxinfer.serving.programs.program_set import options_of, program_of
from jaxinfer.serving.programs.programs import Programs
from jaxinfer.serving.programs.shared_prefixes import most_items
from jaxinfer.serving.programs.speculative.drafter import DraftTextSizes
from jaxinfer.serving.programs.speculative.lookup import LookupDrafter
from jaxinfer.serving.programs.steps import StepContext
from jaxinfer.serving.programs.token_parts import part_sizes
from jaxinfer.serving.slots.adapter_datum import SLOT_OF_TOKEN
from jaxinfer.serving.startup.memory import bytes_per_device
from tests import hlo
from tests.kernels.h200_target import h200_mesh, needs_plugin

pytestmark = [needs_plugin, pytest.mark.slow]

_BLOCK_SIZE, _BLOCKS, _WIDTH, _SLOTS = 16, 32_768, 256, 257
_CONFIG = shape_config("0.6b")
_LAYERS = _CONFIG.num_hidden_layers
_TEXTS = DraftTextSizes(_BLOCK_SIZE * _WIDTH, 1 << 18)


class Step(NamedTuple):
    """A program and the most that it may cost.

    Attributes:
        key: which program.
        launches: most kernels a run launches; of a multi-step decode, most in one of its steps and
            around.
        temp_mb: most temporary memory on one device, in 10^6 bytes.
        mosaic: how often each layer launches each Mosaic kernel.
        devices: H200s that it runs on.
        last: how often the last layer does, if it differs.
    """

    key: ProgramKey
    launches: int
    temp_mb: float
    mosaic: dict[str, int]
    devices: int = 1
    last: dict[str, int] | None = None

    @property
    def parts(self) -> int:
        """In how many parts the tokens go through the layers."""
        if isinstance(self.key, PrefillShape):
            return len(part_sizes(self.key.tokens, self.devices))
        return 1


_DECODE = {"norm_rope_write": 1, "paged_decode_attention": 1}
_SMALL = {"small_plain": 1, "small_gated": 1, "small_residual": 2}
_FEW_ROWS = {**_DECODE, "combine_splits": 1, **_SMALL}
_FEW_ROWS_ON_2 = {**_DECODE, "small_plain": 1, "small_gated": 1}
_SOME_ROWS = {**_DECODE, "medium_project": 1, "medium_gated": 1}
_MANY_ROWS = {**_SOME_ROWS, "add_norm": 2}
_SHARING = {name: count for name, count in _MANY_ROWS.items() if name != "paged_decode_attention"}
_SHARING |= {"attend_shared": 1, "attend_own": 1}
_PREFILL = {"norm_rope_write": 1, "paged_prefill_attention": 1, "add_norm": 2, "silu_mul": 1}
# The last layer of a prefill goes on with one token of each row, as if it were decoding.
_LAST = {"add_norm": 1, **_DECODE, "combine_splits": 1}

_SUMS = ("all_reduce", "all_reduce_norm", "small_summed")
_LAST_JOINED = {**_DECODE, "combine_splits": 1}  # its tokens are put together in its norm

# The one place for these bounds. `scripts/h200_compile.py` prints what was measured beside them: a
# change that lowers a number lowers its bound here to the new number and a small reserve.
STEPS = {
    "decode_2": Step(DecodeShape(2, _WIDTH), 207, 1.3, _FEW_ROWS),
    "decode_64": Step(DecodeShape(64, _WIDTH), 265, 6, _SOME_ROWS),
    "decode_256": Step(DecodeShape(256, _WIDTH), 240, 8.5, _MANY_ROWS),
    "shared_256": Step(DecodeShape(256, _WIDTH, most_items(256)), 268, 17, _SHARING),
    "sampled_2": Step(SampledDecodeKey(DecodeShape(2, _WIDTH), "temperature"), 222, 1.6, _FEW_ROWS),
    "sampled_32": Step(SampledDecodeKey(DecodeShape(32, _WIDTH), "truncate"), 315, 40, _SOME_ROWS),
    "multi_step_2": Step(
        SampledDecodeKey(DecodeShape(2, _WIDTH), "temperature", 8), 231, 1.6, _FEW_ROWS
    ),
    "speculative_1": Step(
        SpeculativeDecodeKey(DecodeShape(1, _WIDTH), "temperature", LookupDrafter(7, 5, 5)),
        242,
        5.2,
        _FEW_ROWS,
    ),
    "speculative_1_by_8": Step(
        SpeculativeDecodeKey(DecodeShape(1, _WIDTH), "temperature", LookupDrafter(7, 5, 5), 8),
        252,
        5.4,
        _FEW_ROWS,
    ),
    "speculative_16_by_8": Step(
        SpeculativeDecodeKey(DecodeShape(16, _WIDTH), "temperature", LookupDrafter(3, 5, 5), 8),
        310,
        41,
        _SOME_ROWS,
    ),
    "speculative_4": Step(
        SpeculativeDecodeKey(DecodeShape(4, _WIDTH), "truncate", LookupDrafter(7, 24, 1, True)),
        329,
        40,
        _SOME_ROWS,
    ),
    "prefill_2048": Step(PrefillShape(2048, 8, _WIDTH), 360, 55, _PREFILL, last=_LAST),
    "scored_2048": Step(PrefillShape(2048, 8, _WIDTH, all_tokens=True), 360, 64, _PREFILL),
    "prefill_1024_on_2": Step(PrefillShape(1024, 8, _WIDTH), 360, 18, _PREFILL, 2, _LAST),
    "prefill_8192_on_2": Step(PrefillShape(8192, 8, _WIDTH), 812, 112, _PREFILL, 2, _LAST_JOINED),
    # A cluster combines the splits of contexts as short as these.
    "decode_2_on_2": Step(DecodeShape(2, 64), 180, 0.1, _FEW_ROWS_ON_2, devices=2),
    "decode_64_on_2": Step(DecodeShape(64, _WIDTH), 295, 4, _SOME_ROWS, devices=2),
    "decode_64_on_4": Step(DecodeShape(64, _WIDTH), 411, 3.6, _DECODE, devices=4),
}


@functools.cache
def programs_on(devices, config=_CONFIG):
    mesh, rules = h200_mesh(devices), ShardingRules()
    peer_buffers = have_peer_buffers(mesh, devices, Kernels("mosaic"))
    context = StepContext(
        config, mesh, rules, Kernels("mosaic"), _BLOCK_SIZE, "bfloat16", peer_buffers
    )
    params = abstract_params(config, jnp.bfloat16, mesh, rules)
    return Programs(context, params, _BLOCKS, _SLOTS, texts=_TEXTS)


@functools.cache
def _compile(key, devices, config=_CONFIG):
    programs = programs_on(devices, config)
    options = options_of(key, platform="gpu", num_devices=devices)
    compiled = program_of(programs, key).lower().compile(compiler_options=options or None)
    return compiled.memory_analysis(), compiled.as_text()


@pytest.fixture(params=STEPS)
def step(request):
    return STEPS[request.param]


def test_the_cache_is_updated_in_place(step):
    memory, text = _compile(step.key, step.devices)
    kv_bytes = programs_on(step.devices).cache.block_bytes * _BLOCKS
    others = 4 * _SLOTS if isinstance(step.key, SampledDecodeKey | SpeculativeDecodeKey) else 0
    if isinstance(step.key, SpeculativeDecodeKey):
        others += bytes_per_device(programs_on(step.devices).draft_state)
    assert memory.alias_size_in_bytes == kv_bytes + others
    pages = programs_on(step.devices).kv[0].k
    local = pages.sharding.shard_shape(pages.shape)
    assert hlo.copies(text, functools.reduce(int.__mul__, local)) == []


@pytest.mark.parametrize("devices", [1, 2])
def test_edits_and_counts_of_slots_are_updated_in_place(devices):
    programs = programs_on(devices)
    for key in (SamplerKey(64, "full"), SetEditsKey(8), CountTokensKey(8, 2048)):
        memory, text = _compile(key, devices)
        kept = programs.slot_state
        kept = {SetEditsKey: kept.edits, CountTokensKey: kept.token_counts}.get(type(key), kept)
        tokens = 4 * _SLOTS if isinstance(key, SamplerKey) else 0
        assert memory.alias_size_in_bytes == bytes_per_device(kept) + tokens
        counts = programs.slot_state.token_counts
        assert hlo.copies(text, math.prod(counts.sharding.shard_shape(counts.shape))) == []


def test_temporary_memory_and_launches_stay_within_their_bounds(step, record_property):
    memory, text = _compile(step.key, step.devices)
    launches, temp_mb = hlo.launches(text), memory.temp_size_in_bytes / 1e6
    record_property("launches", f"{launches} of {step.launches}")
    record_property("temporary MB", f"{temp_mb:.2f} of {step.temp_mb}")
    assert launches <= step.launches
    assert temp_mb <= step.temp_mb


def test_every_layer_runs_the_kernels(step):
    _, text = _compile(step.key, step.devices)
    in_parts = {name: n * step.parts for name, n in step.mosaic.items()}
    expected = collections.Counter({name: n * (_LAYERS - 1) for name, n in in_parts.items()})
    expected.update(in_parts if step.last is None else step.last)
    kernels = hlo.mosaic_kernels(text)
    if step.devices > 1 and step.parts == 1:  # sums take the norm that follows with them
        expected.pop("add_norm", None)
    for name in _SUMS:  # counted below
        kernels.pop(name, None)
    assert kernels == expected


def test_devices_sum_twice_a_layer_and_once_for_the_embedding(step):
    _, text = _compile(step.key, step.devices)
    # The last layer takes all parts at once, where it goes on with few tokens.
    in_parts = _LAYERS if step.last is None else _LAYERS - 1
    sums = (2 * in_parts + 1) * step.parts + 2 * (_LAYERS - in_parts)
    ours = sum(hlo.mosaic_kernels(text)[name] for name in _SUMS)
    # Sums of parts run side by side: two devices send each other what they have.
    one_by_one = sums if step.parts == 1 else 2 * (_LAYERS - in_parts)
    assert ours == (one_by_one if step.devices > 1 else 0)
    swaps = sums - one_by_one if step.devices == 2 else 0
    assert hlo.collectives(text) == ({"collective-permute": swaps} if swaps else {})


def test_devices_swap_by_copies_from_memory_to_memory():
    _, text = _compile(STEPS["prefill_8192_on_2"].key, 2)
    swaps = [i for i in hlo.scheduled(text) if i.opcode.startswith("collective-permute-start")]
    assert swaps
    assert all('"collectives_mode":"COLLECTIVES_PEER_MEMORY"' in i.line for i in swaps)


def test_sums_of_a_long_prefill_run_beside_the_products_of_the_other_half():
    step = STEPS["prefill_8192_on_2"]
    assert step.parts == 2
    beside = hlo.beside_sums(_compile(step.key, step.devices)[1])
    products = [sum(map(hlo.is_product, instructions)) for instructions in beside]
    # Nothing is left to compute beside the embedding's first sum, nor beside the last three: the
    # last layer takes both halves at once.
    assert min(products[1:-3]) >= 1


def test_sampling_on_devices_exchanges_few_numbers_a_row():
    rows, devices = 64, 4
    _, text = _compile(SamplerKey(rows, "temperature"), devices)
    assert hlo.collectives(text) == {"all-gather": 2, "all-reduce": 3}
    exchanged = [i.num_elements for i in hlo.scheduled(text) if i.opcode.startswith("all-")]
    assert max(exchanged) == rows * devices * 2


@pytest.mark.parametrize(("rows", "devices", "launches"), [(2, 1, 10), (64, 1, 13), (2, 2, 7)])
def test_xlas_merged_projections_are_not_cut_apart_nor_their_weights_copied(
    rows, devices, launches
):
    """A layer of Qwen3-8B, whose q, k and v are XLA's.

    Here it can't time products, so it splits their contractions, with a kernel each for the sums.
    """
    shape, key = shape_config("8b"), DecodeShape(rows, _WIDTH)
    one, two = (
        _compile(key, devices, dataclasses.replace(shape, num_hidden_layers=layers))[1]
        for layers in (1, 2)
    )
    assert hlo.launches(two) - hlo.launches(one) <= launches
    heads = shape.num_attention_heads + 2 * shape.num_key_value_heads
    weights = heads * shape.head_dim * shape.hidden_size // devices
    made = [i for i in hlo.scheduled(two) if i.opcode in ("fusion", "concatenate", "copy")]
    assert max(instruction.num_elements for instruction in made) < weights


_SMOLLM3 = dataclasses.replace(
    _CONFIG,
    model_type="smollm3",
    num_hidden_layers=12,
    unrotated_layers=(3, 7, 11),
)


@pytest.mark.parametrize(("scheme", "rounding"), [("fp8", 0), ("int4", 0), ("FP8_DYNAMIC", 10)])
def test_few_rows_of_quantized_weights_launch_the_kernels_of_plain_ones(scheme, rounding):
    """Inputs that XLA rounds after their norm take launches of their own, up to ten a layer."""
    config = dataclasses.replace(_CONFIG, num_hidden_layers=4)
    key = STEPS["decode_2"].key
    _, plain = _compile(key, 1, config)
    memory, text = _compile(key, 1, with_scheme(config, scheme))
    kernels = {("small_bare" if rounding else "small_plain"): 1, "small_gated": 1}
    kernels |= {**_FEW_ROWS, "small_plain": 0, **kernels}
    expected = {name: 4 * count for name, count in kernels.items() if count}
    assert hlo.mosaic_kernels(text) == expected
    assert hlo.launches(text) - hlo.launches(plain) <= 4 * rounding
    assert memory.temp_size_in_bytes < 2e6, "no weight is written out"


@pytest.mark.parametrize("scheme", ["fp8", "int4"])
def test_medium_batches_of_quantized_weights_are_read_as_codes(scheme):
    config = with_scheme(dataclasses.replace(_CONFIG, num_hidden_layers=3), scheme)
    memory, text = _compile(STEPS["decode_64"].key, 1, config)
    kernels = hlo.mosaic_kernels(text)
    assert kernels["medium_codes_project"] == 3 * 3
    assert kernels["medium_codes_gated"] == 3
    if (
        scheme == "fp8"
    ):  # Norms are written as codes; other inputs are quantized by launches of their own.
        assert kernels["add_norm_codes"] == kernels["quantize_groups"] == 3 * 2
        shallow = dataclasses.replace(config, num_hidden_layers=2)
        _, fewer = _compile(STEPS["decode_64"].key, 1, shallow)
        assert hlo.launches(text) - hlo.launches(fewer) <= 10
    plain, _ = _compile(
        STEPS["decode_64"].key, 1, dataclasses.replace(_CONFIG, num_hidden_layers=3)
    )
    assert memory.temp_size_in_bytes <= plain.temp_size_in_bytes + 5e6, "no weight is written out"


def _compile_adapted(key):
    """In an engine with four adapters of rank 16."""
    num_slots, ranks = 4, 16
    programs = programs_on(1)
    loop = AdaptedLayers(num_slots, ranks, programs.context.kernels)
    slots = describe_slots(programs.params, _CONFIG, jnp.bfloat16, num_slots=num_slots, ranks=ranks)
    adapted = dataclasses.replace(
        programs,
        context=dataclasses.replace(programs.context, loop=loop),
        params={**programs.params, ADAPTERS: slots},
    )
    options = options_of(key, platform="gpu", num_devices=1)
    compiled = program_of(adapted, key).lower().compile(compiler_options=options)
    return compiled.memory_analysis(), compiled.as_text(), slots


_ADAPTED = {
    **{f"decode_{rows}": (DecodeShape(rows, _WIDTH), 30) for rows in (2, 64, 256)},
    "speculative_4": (STEPS["speculative_4"].key, STEPS["speculative_4"].temp_mb),
}


@pytest.mark.parametrize("name", _ADAPTED)
def test_adapters_take_one_launch_a_group_beside_the_plain_kernels(name):
    key, temp_mb = _ADAPTED[name]
    extra = {"extra": (SLOT_OF_TOKEN,)}
    if isinstance(key, SpeculativeDecodeKey):
        key = dataclasses.replace(key, shape=dataclasses.replace(key.shape, **extra))
    else:
        key = dataclasses.replace(key, **extra)
    memory, text, _ = _compile_adapted(key)
    kernels = hlo.mosaic_kernels(text)
    assert kernels["medium_project_low_rank"] == 3 * _LAYERS
    assert kernels["medium_gated_low_rank"] == _LAYERS
    assert memory.temp_size_in_bytes <= temp_mb * 1e6


def test_an_adapter_is_written_to_its_slot_in_place():
    memory, text, slots = _compile_adapted(WriteAdapterKey())
    assert memory.alias_size_in_bytes == bytes_per_device(slots)
    assert memory.temp_size_in_bytes == 0
    assert hlo.copies(text, 1) == []
    assert hlo.launches(text) == len(jax.tree.leaves(slots["layers"]))


def test_many_rows_of_blocks_are_multiplied_as_codes():
    """In a launch each, like quantizing what they read; a prefill's last layer has few rows.

    Norms are added up, normalised and quantized in one.
    """
    config = dataclasses.replace(_CONFIG, num_hidden_layers=3)
    memory, text = _compile(PrefillShape(2048, 8, _WIDTH), 1, with_scheme(config, "fp8"))
    kernels = hlo.mosaic_kernels(text)
    assert kernels["large_project"] == 2 * 3 + 1
    assert kernels["large_gated"] == 2
    assert kernels["add_norm_codes"] == 2 * 2 + 1
    assert kernels["quantize_groups"] == 2 * 2
    assert "add_norm" not in kernels
    plain, _ = _compile(PrefillShape(2048, 8, _WIDTH), 1, config)
    assert memory.temp_size_in_bytes <= plain.temp_size_in_bytes, "no weight is written out"


def test_many_rows_of_rounded_inputs_are_multiplied_as_codes():
    config = with_scheme(dataclasses.replace(_CONFIG, num_hidden_layers=2), "FP8_DYNAMIC")
    _, text = _compile(PrefillShape(2048, 8, _WIDTH), 1, config)
    products = [line for line in text.splitlines() if "f8e4m3fn[" in line and "dot(" in line]
    matmuls = [line for line in text.splitlines() if "__cublas$lt$matmul$f8" in line]
    assert len(products) + len(matmuls) >= 7


@pytest.mark.parametrize("config", [_CONFIG, _SMOLLM3], ids=["qwen3", "smollm3"])
def test_a_step_of_two_layers_of_each_kind_needs_the_memory_of_one_of_many(config):
    key = STEPS["scored_2048"].key
    many, _ = _compile(key, 1, config)
    layers = config.num_hidden_layers

    def few_bytes(count):
        shallow = programs_on(1, config).with_layers(count)
        kinds = len(set(family_of(config.model_type).layer_kinds(config)))
        assert len(shallow.params["model"]["layers"]) == len(shallow.kv) == kinds * count
        options = options_of(key, platform="gpu", num_devices=1)
        few = program_of(shallow, key).lower().compile(compiler_options=options)
        return few.memory_analysis().temp_size_in_bytes

    missing = many.temp_size_in_bytes - few_bytes(2)
    assert 0 <= missing < 10_000 * layers
    assert many.temp_size_in_bytes - few_bytes(1) > 10_000 * layers, "one of each would do"


@pytest.mark.parametrize(
    ("key", "kernels"),
    [
        (DecodeShape(2, _WIDTH), _FEW_ROWS),
        (DecodeShape(64, _WIDTH), {**_DECODE, "medium_project": 3, "medium_gated": 1}),
    ],
)
def test_a_llama_with_heads_of_64_has_all_kernels(key, kernels):
    """Llama 3.2 1B's shape, with fewer layers."""
    config = dataclasses.replace(
        _CONFIG,
        vocab_size=128_256,
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=4,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=64,
        eos_token_ids=(),
        model_type="llama",
    )
    _, text = _compile(key, 1, config)
    assert hlo.mosaic_kernels(text) == {name: 4 * count for name, count in kernels.items()}


_30B = dataclasses.replace(shape_config("30b-a3b"), num_hidden_layers=3)


@pytest.mark.parametrize(
    ("rows", "kernels"),
    [
        (1, {"choose_experts": 1, "few_rows_codes_gated": 1, "few_rows_codes_down": 1}),
        (8, {"choose_and_list": 1, "few_rows_codes_gated": 1, "few_rows_codes_down": 1}),
        (16, {"choose_experts": 1, "place_rows": 1, "experts_codes_fused": 1}),
        (256, {"choose_experts": 1, "place_rows": 1, "experts_codes_fused": 1}),
    ],
)
def test_experts_in_blocks_of_float8_are_read_as_codes(rows, kernels):
    memory, text = _compile(DecodeShape(rows, _WIDTH), 1, with_scheme(_30B, "fp8"))
    plain, plain_text = _compile(DecodeShape(rows, _WIDTH), 1, _30B)
    found = hlo.mosaic_kernels(text)
    assert {name: found[name] for name in kernels} == {name: 3 * n for name, n in kernels.items()}
    assert hlo.launches(text) <= hlo.launches(plain_text) + 3 * 12, (
        "of attention's quantized inputs"
    )
    assert memory.temp_size_in_bytes <= plain.temp_size_in_bytes + 5e6, "no weight is written out"


def test_a_prefill_of_experts_in_blocks_of_float8_multiplies_codes():
    memory, text = _compile(PrefillShape(2048, 8, _WIDTH), 1, with_scheme(_30B, "fp8"))
    plain, _ = _compile(PrefillShape(2048, 8, _WIDTH), 1, _30B)
    kernels = hlo.mosaic_kernels(text)
    assert kernels["experts_codes_gated"] == kernels["experts_codes_project"] >= 2
    assert kernels["large_project"] >= 4, "of attention"
    assert memory.temp_size_in_bytes <= plain.temp_size_in_bytes


_THREE_PRODUCTS = {**_DECODE, "medium_project": 3}
_SEVEN_PRODUCTS = {**_DECODE, "medium_project": 7}
_GATED = {**_THREE_PRODUCTS, "medium_gated": 1}
# Published shapes with fewer layers, and the kernels that 64 rows launch in each of these.
_EXPERTS = dict.fromkeys(("choose_experts", "place_rows", "experts_fused"), 1)
_FAMILIES = {
    "qwen2": ((896, 4864, 14, 2, 64), {"vocab_size": 151_936}, _SOME_ROWS),  # Qwen2.5-0.5B
    "mistral": ((5120, 14336, 32, 8, 128), {"vocab_size": 131_072}, _GATED),  # Nemo
    "ministral3": (  # 8B
        (4096, 14336, 32, 8, 128),
        {"rope_scaling": RopeScaling(16.0, 16384, query_beta=0.1)},
        _GATED,
    ),
    "mistral3": ((5120, 32768, 32, 8, 128), {"vocab_size": 131_072}, _THREE_PRODUCTS),  # Small 3.1
    "smollm3": ((2048, 11008, 16, 4, 128), {"unrotated_layers": (3,)}, _GATED),
    "phi3": ((3072, 8192, 24, 8, 128), {"partial_rotary_factor": 0.75}, _GATED),  # 4-mini
    "olmo2": ((4096, 11008, 32, 32, 128), {"vocab_size": 100_352}, _SEVEN_PRODUCTS),  # 7B
    "qwen3_moe": (  # 30B-A3B
        (2048, 6144, 32, 4, 128),
        {"experts": Experts(num_experts=128, experts_per_token=8, intermediate_size=768)},
        {**_DECODE, "medium_project": 2, **_EXPERTS},
    ),
    "qwen3_vl": ((2048, 6144, 16, 8, 128), {}, _GATED),  # 2B
}


@pytest.mark.parametrize("family", _FAMILIES)
def test_other_families_have_kernels(family):
    sizes, changes, kernels = _FAMILIES[family]
    hidden, intermediate, heads, kv_heads, head_dim = sizes
    config = dataclasses.replace(
        _CONFIG,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=4,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        eos_token_ids=(),
        model_type=family,
        **changes,
    )
    _, text = _compile(DecodeShape(64, _WIDTH), 1, config)
    assert hlo.mosaic_kernels(text) == {name: 4 * count for name, count in kernels.items()}


def test_a_multi_step_that_shares_its_forward_pass_is_compiled_to_the_same():
    key = STEPS["multi_step_2"].key
    programs = dataclasses.replace(programs_on(1), forward=SharedForward("cuda"))
    options = options_of(key, platform="gpu", num_devices=1)
    shared = program_of(programs, key).lower().compile(compiler_options=options)
    found = []
    for memory, text in (_compile(key, 1), (shared.memory_analysis(), shared.as_text())):
        found.append(
            (
                memory.temp_size_in_bytes,
                memory.alias_size_in_bytes,
                hlo.launches(text),
                hlo.mosaic_kernels(text),
            )
        )
    assert found[0] == found[1]
