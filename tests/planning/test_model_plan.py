"""Plans say what fits, what does not and what would, and are quick without JAX."""

import dataclasses
import json
import math
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxinfer.config import EngineConfig
from jaxinfer.errors import ModelLoadError
from jaxinfer.model.adapters.device_slots import describe_slots
from jaxinfer.model.architecture import abstract_params
from jaxinfer.model.quantized.quantization import Quantization
from jaxinfer.model.sharding import make_mesh
from jaxinfer.planning import DEVICES, NAMED_SHAPES, plan
from jaxinfer.planning.cost import model_cost
from jaxinfer.planning.memory import plan_memory
from jaxinfer.planning.operations import count_parameters, weight_bytes_per_device
from jaxinfer.planning.times import recorded_overheads
from jaxinfer.serving.startup.memory import bytes_per_device

_QWEN3 = {
    "model_type": "qwen3",
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151_936,
    "max_position_embeddings": 40_960,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "torch_dtype": "bfloat16",
}
_CLASSIFIER = "Qwen3ForSequenceClassification"
_DENSE = [name for name, shape in NAMED_SHAPES.items() if shape.is_measured]


def test_importing_and_planning_loads_no_jax():
    code = (
        "import sys; from jaxinfer.planning import plan; print(plan('Qwen3-8B').fits, "
        "'jax' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False"]


def test_an_8b_model_on_an_h200():
    planned = plan("Qwen3-8B", context=2048)
    # 150.1 GB * 0.92 * 0.95 = 131.2; less 16.38 of weights, 0.16 of slots and 1.48 of a step
    # (16384 tokens * (3 * 12288 + 2 * 4096) * 2 bytes) leaves 113.2 GB; a token has
    # 2 * 36 * 8 * 128 * 2 = 147,456 bytes: 47,967 blocks of 16, in steps of 256.
    assert planned.memory.num_kv_blocks == 47_872
    assert planned.memory.num_kv_tokens == 47_871 * 16
    assert planned.memory.sequences(2048) == 47_871 // 128
    assert planned.memory.longest(256) == 47_871 // 256 * 16
    assert planned.memory.longest(1) == 40_960
    assert planned.fits
    assert [batch.sequences for batch in planned.batches] == [1, 2, 4, 8, 16, 32, 64, 128, 256]


def test_what_does_not_fit_names_the_smallest_changes_that_do():
    planned = plan("Qwen3-32B", context=8192, batches=[1, 256])
    assert not planned.fits
    assert [batch.fits for batch in planned.batches] == [True, False]
    longest, most = planned.memory.longest(256), planned.memory.sequences(8192)
    assert planned.remedies == (
        "tensor parallelism over 8 devices (--tp 8)",
        "5 pipeline stages (--pipeline-parallel-size 5)",
        "context parallelism over 16 devices (--context-parallel-size 16)",
        f"a context of at most {longest} tokens (--context {longest})",
        f"at most {most} sequences at once (--batch {most})",
    )
    for changes, fits in [
        ({"tensor_parallel_size": 8}, True),
        ({"tensor_parallel_size": 4}, False),
        ({"pipeline_parallel_size": 5}, True),
        ({"pipeline_parallel_size": 4}, False),
        ({"context_parallel_size": 16}, True),
        ({"context_parallel_size": 8}, False),
        ({"context": longest}, True),
        ({"context": longest + 1}, False),
        ({"batches": [most]}, True),
        ({"batches": [most + 1]}, False),
    ]:
        options = {"context": 8192, "batches": [256]} | changes
        assert plan("Qwen3-32B", **options, max_num_seqs=256).fits == fits, changes


def test_weights_that_do_not_fit_need_more_devices():
    planned = plan("Qwen3-32B", "t4", batches=[1])
    assert planned.memory.num_kv_blocks == planned.memory.num_kv_tokens == 0
    assert planned.memory.sequences(1) == planned.memory.longest(1) == 0
    assert [change.partition(" (")[0] for change in planned.remedies] == [
        "tensor parallelism over 8 devices",
        "6 pipeline stages",
    ]


def test_remedies_are_whole_combinations():
    planned = plan("Qwen3-235B-A22B", pipeline_parallel_size=2)
    assert planned.remedies == (
        "tensor parallelism over 2 devices (--tp 2 --pipeline-parallel-size 2)",
        "4 pipeline stages (--pipeline-parallel-size 4)",
    )
    assert plan("Qwen3-235B-A22B", pipeline_parallel_size=2, tensor_parallel_size=2).fits
    whole = "expert parallelism over 4 devices (--tp 4 --enable-expert-parallel)"
    assert whole in plan("Qwen3-235B-A22B").remedies
    assert plan("Qwen3-235B-A22B", tensor_parallel_size=4, enable_expert_parallel=True).fits


def test_no_change_fits_a_tiny_device():
    (remedy,) = plan("Qwen3-32B", "1:100:10").remedies
    assert remedy == "a device with more memory: no change of these fits a 1:100:10"


def test_expected_times_are_said_to_be_unknown_where_they_are():
    assert plan("Qwen3-8B").batches[0].tpot.expected_s is not None
    assert plan("Qwen3-8B", "l40s").batches[0].tpot.expected_s is not None
    others = [
        (plan("Llama-2-7B"), "no run of a llama model"),
        (plan("Qwen3-8B", "l40s", tensor_parallel_size=2), "without NVLink"),
        (plan("Qwen3-8B", quantization="int8"), "no run of int8 weights was"),
        (plan("Qwen3-8B", quantization="fp8", tensor_parallel_size=2), "weights over several"),
        (plan("Qwen3-8B", "a100", quantization="fp8"), "fp8 weights are for H100 and H200"),
        (plan("Qwen3-30B-A3B", tensor_parallel_size=4), "of experts over several devices"),
        (plan("Qwen3-30B-A3B", "80:2000:300"), "kernels for experts are for"),
        (plan("Qwen3-8B", kv_cache_dtype="fp8_e4m3"), "an fp8_e4m3 KV cache are too few"),
        (plan("Qwen3-8B", context_parallel_size=2), "of context parallelism"),
        (plan("Qwen3-8B", pipeline_parallel_size=2), "of pipelines one run"),
    ]
    for planned, note in others:
        for batch in planned.batches:
            assert batch.tpot.expected_s is None
            assert batch.ttft.expected_s is None
        assert note in " ".join(planned.notes)


@pytest.mark.parametrize(
    ("model", "quantization", "said"),
    [
        ("Qwen3-8B", "fp8", "recorded H200 runs of fp8 weights, with a largest error of"),
        ("Qwen3-8B", "int4", "of int4 weights, with"),
        ("Qwen3-30B-A3B", None, "of experts, too few to tell their error"),
        ("Qwen3-30B-A3B", "fp8", "of fp8 experts, too few"),
    ],
)
def test_times_of_other_weights_are_fitted_to_their_own_runs(model, quantization, said):
    plain, other = (plan(model, batches=[64], quantization=each) for each in (None, quantization))
    assert said in " ".join(other.notes)
    overheads, known = recorded_overheads(), recorded_overheads(other.shape.weights_kind)
    tpot = other.batches[0].tpot
    extra = plain.shape.num_hidden_layers * overheads.decode_layer_s + 64 * overheads.decode_row_s
    assert tpot.expected_s == pytest.approx(tpot.floor_s * (1 + known.decode_of_floor) + extra)
    assert known.decode_of_floor > 1.5 * overheads.decode_of_floor
    assert tpot.floor_s <= plain.batches[0].tpot.floor_s


@pytest.mark.parametrize(
    ("quantization", "device", "faster"),
    [
        *((name, "h200", 2) for name in ("fp8", "FP8_DYNAMIC", "W8A8")),
        *((name, "h200", 1) for name in ("int8", "int4")),
        *(("fp8", "l40s", 2), ("fp8", "a100", 1), ("fp8", "80:2000:300", 1)),
        *(("W8A8", "a100", 2), ("W8A8", "rtx4090", 4), ("W8A8", "80:2000:300", 1)),
    ],
)
def test_products_of_codes_are_faster_where_the_device_has_them(quantization, device, faster):
    """Of all products of a long prompt but attention's: 6.95 billion weights of 36 layers."""
    plain = plan("Qwen3-8B", device, batches=[1], context=4096)
    codes = plan("Qwen3-8B", device, batches=[1], context=4096, quantization=quantization)
    layers = 2 * 36 * (2 * 4096 * 40 * 128 + 3 * 4096 * 12_288) * 4096 / plain.chip.flops_per_s
    saved = layers * (1 - 1 / faster)
    found = plain.batches[0].ttft.floor_s - codes.batches[0].ttft.floor_s
    assert found == pytest.approx(saved, rel=1e-6, abs=1e-12)
    assert 0 < codes.batches[0].ttft.utilization <= 1


def test_products_of_chosen_experts_are_of_codes():
    plain, codes = (
        plan("Qwen3-30B-A3B", batches=[64], context=4096, quantization=each)
        for each in (None, "fp8")
    )
    weights = 48 * (2 * 2048 * 36 * 128 + 8 * 3 * 2048 * 768)
    saved = 2 * weights * 64 * 4096 / plain.chip.flops_per_s / 2
    found = plain.batches[0].ttft.floor_s - codes.batches[0].ttft.floor_s
    assert found == pytest.approx(saved, rel=1e-6)


def test_notes_tell_of_devices_that_were_not_measured():
    assert not any("data sheet" in note for note in plan("Qwen3-8B").notes)
    assert any("data sheet" in note for note in plan("Qwen3-8B", "h100").notes)
    assert any("no bfloat16" in note for note in plan("Qwen3-0.6B", "t4").notes)
    assert not any("bfloat16" in note for note in plan("Qwen3-0.6B", "t4", dtype="float16").notes)


def test_a_data_sheets_speed_is_not_expected():
    # An H200 reads at 4.57 of 4.8 TB/s: the same share of an A100's 2.039 TB/s is expected. Layers
    # and rows take as long as on an H200.
    tpot = plan("Qwen3-8B", "a100", context=1, batches=[1]).batches[0].tpot
    known = recorded_overheads()
    reached = tpot.floor_s * 4.8 / 4.57 * (1 + known.decode_of_floor)
    assert tpot.expected_s == pytest.approx(
        reached + 36 * known.decode_layer_s + known.decode_row_s, rel=1e-6
    )
    assert tpot.utilization == pytest.approx(tpot.floor_s / tpot.expected_s)


def test_a_large_batch_has_a_slot_for_each_sequence():
    small, large = (plan("Qwen3-8B", context=64, batches=[rows]) for rows in (1, 1000))
    assert small.memory.slot_bytes == 257 * 151_936 * 4
    assert large.memory.slot_bytes == 1001 * 151_936 * 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"context": 40_961}, "context must be at most the model's 40960 tokens"),
        ({"context": 0}, "context must be from 1"),
        ({"batches": [0]}, "a batch must be from 1"),
        ({"tensor_parallel_size": 3}, "sizes that work: 1, 2, 4, 8"),
        ({"dtype": "float32"}, "dtype float32 can't be planned"),
        ({"block_size": 17}, "block_size"),
        ({"gpu_memory_utilization": 1.5}, "gpu_memory_utilization"),
        ({"max_num_seqs": 8192, "max_num_batched_tokens": 64}, "max_num_batched_tokens"),
        ({"device": "h300"}, "unknown device"),
    ],
)
def test_mistakes_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        plan("Qwen3-8B", **arguments)


EXPERTS = {"tensor_parallel_size": 8, "enable_expert_parallel": True}


@pytest.mark.parametrize(
    ("model", "arguments", "message"),
    [
        ("Qwen3-8B", {}, "this qwen3 has none"),
        ("Qwen3-30B-A3B", {"expert_parallel_size": 3}, "tensor_parallel_size 8: 1, 2, 4, 8$"),
        ("Qwen3-30B-A3B", {"tensor_parallel_size": 3}, r"does not divide num_attention_heads"),
        ("Qwen3-30B-A3B", {"tensor_parallel_size": 3}, "sizes that work: 1, 2, 4, 8, 16, 32$"),
        (
            "Qwen3-30B-A3B",
            {"enable_eplb": True, "eplb_config": {"num_redundant_experts": 4}},
            "a multiple of the 8 groups",
        ),
    ],
)
def test_groups_of_experts_that_cannot_be_are_named(model, arguments, message):
    with pytest.raises(ValueError, match=message):
        plan(model, **(EXPERTS | arguments))


def test_whole_experts_take_the_memory_of_shares_and_redundant_ones_more():
    model = "Qwen3-30B-A3B"
    shares, whole = plan(model, tensor_parallel_size=8), plan(model, **EXPERTS)
    assert whole.memory == shares.memory
    assert (whole.expert_groups, shares.expert_groups) == (8, 1)
    assert whole.batches[0].tpot.floor_s > 1.2 * shares.batches[0].tpot.floor_s
    assert any("8 groups of devices" in note for note in whole.notes)
    eplb = {"enable_eplb": True, "eplb_config": {"num_redundant_experts": 16}}
    more = plan(model, **EXPERTS, **eplb).memory.weight_bytes - whole.memory.weight_bytes
    assert more == 2 * 48 * 3 * 2048 * 768 * 2  # two more of each layer on every device


def test_more_devices_are_a_remedy_where_experts_split_over_them():
    tight = plan(
        "Qwen3-30B-A3B", "24:600:125", **(EXPERTS | {"tensor_parallel_size": 2}), batches=[1]
    )
    assert any("over 4 devices (--tp 4 --enable-expert" in each for each in tight.remedies)
    groups = EXPERTS | {"tensor_parallel_size": 2, "expert_parallel_size": 2}
    tight = plan("Qwen3-30B-A3B", "24:600:125", **groups, batches=[1])
    assert any("over 4 devices" in each for each in tight.remedies)


def test_parts_add_up():
    for name, shape in NAMED_SHAPES.items():
        planned = plan(name, context=1000)
        parts = {part.name: part for part in planned.operations}
        assert sum(part.parameters for part in parts.values()) == planned.parameters
        assert parts["attention"].bytes_per_token == 1000 * shape.kv_bytes_per_token()
        # Two operations a weight that a token goes through; an embedding row is looked up.
        weights = planned.active_parameters - parts["norms"].parameters
        weights -= 0 if shape.tie_word_embeddings else parts["embedding"].parameters
        products = ("qkv and output", "mlp", "router", "experts", "head")
        flops = sum(part.flops_per_token for key, part in parts.items() if key in products)
        assert flops == 2 * weights
        # Formulas are arithmetic: what is after "=" gives the number of parameters.
        for part in parts.values():
            if part.parameters and not part.formula.startswith("the embedding"):
                text = part.formula.split("=")[1].split(",")[0].replace("·", "*")
                assert eval(text) == part.parameters, part.formula


def test_biases_count():
    shape = dataclasses.replace(NAMED_SHAPES["Qwen3-8B"], attention_bias=True)
    biases = 36 * (32 * 128 + 2 * 8 * 128 + 4096)
    assert count_parameters(shape) - count_parameters(NAMED_SHAPES["Qwen3-8B"]) == biases
    assert weight_bytes_per_device(shape, "bfloat16", 1) == 2 * count_parameters(shape)


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(_DENSE),
    device=st.sampled_from(list(DEVICES)),
    degree=st.sampled_from([1, 2, 4, 8, 16]),
    rows=st.integers(1, 2000),
    context=st.integers(1, 40_960),
    block_size=st.sampled_from([8, 16, 256]),
)
def test_capacity_is_consistent(name, device, degree, rows, context, block_size):
    shape = NAMED_SHAPES[name]
    if shape.indivisible(degree):
        return
    config = EngineConfig(
        tensor_parallel_size=degree, block_size=block_size, max_num_seqs=max(rows, 256)
    )
    memory = plan_memory(shape, DEVICES[device], "bfloat16", config)
    used = memory.weight_bytes + memory.slot_bytes + memory.step_bytes + memory.kv_bytes
    assert memory.num_kv_blocks == 0 or used <= memory.engine_bytes <= memory.device_bytes
    longest = memory.longest(rows)
    assert longest == 0 or memory.sequences(longest) >= rows
    if longest < memory.max_model_len:
        assert memory.sequences(longest + 1) < rows
    most = memory.sequences(context)
    assert most == 0 or memory.longest(most) >= context
    assert memory.longest(most + 1) < context or context > memory.max_model_len
    assert memory.num_kv_tokens >= most * context


def test_json_has_all_of_it_and_no_infinities():
    values = json.loads(json.dumps(plan("Qwen3-8B", batches=[1, 64]).to_dict(), allow_nan=False))
    assert values["memory"]["num_kv_tokens"] == 765_936
    assert [row["sequences"] for row in values["batches"]] == [1, 64]
    assert values["batches"][1]["tokens_per_s"] == pytest.approx(
        64 / values["batches"][1]["tpot"]["expected_s"]
    )
    assert values["batches"][1]["longest_context"] == 11_952
    assert math.isclose(values["batches"][0]["tpot"]["utilization"], 0.783, abs_tol=0.01)


def test_an_int8_cache_holds_nearly_twice_the_tokens_and_its_time_is_not_guessed():
    full, integers = (plan("Qwen3-8B", kv_cache_dtype=dtype) for dtype in ("auto", "int8"))
    # 2 * 36 layers * 8 heads of 128 bytes and a scale of 4.
    assert integers.memory.kv_bytes_per_token == 2 * 36 * 8 * (128 + 4)
    assert round(integers.memory.num_kv_tokens / full.memory.num_kv_tokens, 2) == 1.94
    assert integers.batches[-1].tpot.floor_s < full.batches[-1].tpot.floor_s
    assert integers.batches[0].tpot.expected_s is None
    assert any("int8 KV cache" in note for note in integers.notes)


def test_an_engine_for_pooling_holds_no_slots_and_gives_no_tokens():
    whole, pooling = plan("Qwen3-0.6B"), plan("Qwen3-0.6B", runner="pooling")
    assert (whole.runner, pooling.runner) == ("generate", "pooling")
    assert whole.memory.slot_bytes > 0 == pooling.memory.slot_bytes
    # A prefill of 16,384 tokens; the logits of 256 sequences take more.
    assert pooling.memory.step_bytes == 16_384 * (3 * 3072 + 2 * 1024) * 2
    assert pooling.memory.step_bytes < whole.memory.step_bytes
    assert pooling.memory.num_kv_blocks >= whole.memory.num_kv_blocks  # in steps of 256
    small, other = (plan("Qwen3-0.6B", "a10", runner=each) for each in ("pooling", "generate"))
    assert small.memory.num_kv_blocks > other.memory.num_kv_blocks
    assert pooling.memory.weight_bytes == whole.memory.weight_bytes
    assert pooling.parameters == whole.parameters
    for batch, other in zip(pooling.batches, whole.batches, strict=True):
        assert batch.tpot is None
        assert batch.ttft.floor_s <= other.ttft.floor_s
        tokens = batch.sequences * pooling.context
        assert batch.tokens_per_s == pytest.approx(tokens / batch.ttft.expected_s)
    assert pooling.batches[-1].ttft.floor_s < whole.batches[-1].ttft.floor_s
    assert any("tokens a second are those of prompts" in note for note in pooling.notes)
    assert json.loads(json.dumps(pooling.to_dict()))["batches"][0]["tpot"] is None
    head = pooling.operations[-1]
    assert (head.name, head.flops_per_token, head.bytes_per_token) == ("head", 0, 0)


def test_heads_of_integers_are_read_by_no_prompt():
    quantized = Quantization("int8", ignore=())
    shape = dataclasses.replace(NAMED_SHAPES["Qwen3-8B"], quantization=quantized)
    whole, pooling = (model_cost(shape, pools=pools) for pools in (False, True))
    head = shape.vocab_size * shape.hidden_size
    assert whole.weight_bytes - pooling.weight_bytes == head + 4 * shape.vocab_size
    assert pooling.head_flops_per_token == 0


@pytest.mark.parametrize(
    ("fields", "count"),
    [
        ({}, 2),  # as transformers writes two
        ({"id2label": {"0": "calm"}}, 1),
        ({"id2label": {"0": "calm", "1": "glad", "2": "sad"}}, 3),
        ({"num_labels": 4}, 4),
        ({"num_labels": None, "id2label": None}, 2),
    ],
)
def test_a_classifier_is_planned_for_pooling_with_its_head(tmp_path, fields, count):
    file = tmp_path / "config.json"
    plain = {**_QWEN3, "tie_word_embeddings": False}
    file.write_text(json.dumps({**plain, "architectures": [_CLASSIFIER], **fields}))
    planned = plan(tmp_path)
    assert planned.shape.num_classes == count
    assert planned.runner == "pooling"
    part = planned.operations[-1]
    assert (part.name, part.parameters, part.bytes_per_token) == ("classifier", count * 1024, 0)
    assert any(f"{count} class" in note for note in planned.notes)
    file.write_text(json.dumps(plain | {"tie_word_embeddings": True}))
    model = plan(tmp_path, runner="pooling")
    # It needs no head of a language model, and the host has the classes' rows.
    assert planned.memory == model.memory
    assert planned.parameters == model.parameters + count * 1024
    assert [each.ttft for each in planned.batches] == [each.ttft for each in model.batches]


def test_a_classifier_refuses_what_generates(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({**_QWEN3, "architectures": [_CLASSIFIER]}))
    with pytest.raises(ValueError, match=r"classifying head and can't generate; leave runner out"):
        plan(tmp_path, runner="generate")
    with pytest.raises(ValueError, match=r"classifying head gives none; leave it out"):
        plan(tmp_path, speculative_config={"method": "ngram"})
    assert plan(tmp_path, runner="pooling").runner == "pooling"


@pytest.mark.parametrize("fields", [{"num_labels": 0}, {"id2label": 3}, {"id2label": {}}])
def test_classes_that_can_not_be_counted_are_refused(tmp_path, fields):
    mapping = {**_QWEN3, "architectures": [_CLASSIFIER], **fields}
    (tmp_path / "config.json").write_text(json.dumps(mapping))
    with pytest.raises(ModelLoadError, match=r"config.json: (num_labels|id2label) must"):
        plan(tmp_path)


@pytest.mark.parametrize(("devices", "ranks"), [(1, 16), (2, 5)])
def test_slots_of_adapters_take_memory(devices, ranks):
    lora = {"enable_lora": True, "max_loras": 4, "max_lora_rank": ranks}
    plain, adapted = (
        plan("Qwen3-0.6B", tensor_parallel_size=devices, **each) for each in ({}, lora)
    )
    config = adapted.shape
    params = abstract_params(config, "bfloat16", make_mesh(devices))
    slots = describe_slots(params, config, "bfloat16", num_slots=4, ranks=ranks)
    assert adapted.memory.adapter_bytes == bytes_per_device(slots)
    assert plain.memory.adapter_bytes == 0
    assert adapted.memory.num_kv_blocks <= plain.memory.num_kv_blocks


def test_adapters_of_a_model_with_experts_are_refused_as_by_an_engine():
    with pytest.raises(ValueError, match="enable_lora adapts dense layers, and this model's are e"):
        plan("Qwen3-30B-A3B", enable_lora=True)


@pytest.mark.parametrize("devices", [1, 2])
def test_tiers_take_room_for_blocks_on_their_way_and_keep_tokens_in_host_memory(devices):
    plain, tiers = (
        plan("Qwen3-8B", tensor_parallel_size=devices, **each)
        for each in ({}, {"kv_offloading_size": 32, "max_num_batched_tokens": 8192})
    )
    # 512 blocks of 16 tokens in, twice as many out and 64 of padding; 144 KiB a token on
    # all devices together.
    assert tiers.memory.staged_bytes == (3 * 8192 + 64 * 16) * 147_456 // devices
    assert tiers.memory.num_host_tokens == 32 * 2**30 // (16 * 147_456) * 16
    assert tiers.memory.num_kv_blocks < plain.memory.num_kv_blocks
    assert (plain.memory.staged_bytes, plain.memory.num_host_tokens) == (0, 0)


def test_texts_that_drafts_are_made_from_take_memory():
    plain = plan("Qwen3-8B")
    drafts = plan("Qwen3-8B", speculative_config={"method": "suffix"})
    # Tokens of each slot's sequence, its length, and the corpus.
    assert drafts.memory.draft_bytes == 4 * (257 * 40_961 + (1 << 18))
    assert plain.memory.draft_bytes == 0
    assert drafts.memory.num_kv_blocks <= plain.memory.num_kv_blocks
    assert len(drafts.notes) == len(plain.notes) + 1
