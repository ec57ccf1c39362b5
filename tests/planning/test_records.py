"""Plans agree with recorded engines on an H200: weights, blocks and times."""

import pytest

from jaxinfer.config import EngineConfig
from jaxinfer.planning.devices import H200
from jaxinfer.planning.memory import plan_memory
from jaxinfer.planning.model_plan import plan
from jaxinfer.planning.times import Timing, recorded_overheads
from scripts.measurements.results import is_of_a_variant, load_results
from scripts.planning_overheads import main, points, record_shape, workload_runs
from scripts.speed.workloads import make_workload

# Engines have left 5% of the allocator's memory free since then; earlier ones hold other blocks.
_SINCE = "20261123"
RECORDS = load_results()
ENGINES = [
    record
    for record in RECORDS
    if "nvidia-h200" in record["file"] and record.get("memory") and record["file"] >= _SINCE
    if record["engine"]["num_kv_blocks"] is None  # the engine's own number
    if record["model"].endswith(" shape")
    if not is_of_a_variant(record) and "drafts" not in record["kind"]
]


@pytest.mark.parametrize("record", ENGINES, ids=lambda record: record["file"])
def test_blocks_are_those_of_the_engine(record):
    engine, memory = record["engine"], record["memory"]
    names = ("max_num_seqs", "tensor_parallel_size", "gpu_memory_utilization", "block_size")
    names += ("enable_lora", "max_loras", "max_lora_rank") if engine.get("enable_lora") else ()
    config = EngineConfig(**{name: engine[name] for name in names})
    planned = plan_memory(record_shape(record), H200, "bfloat16", config)
    blocks = memory["num_kv_blocks"] / engine["data_parallel_size"]
    weights = planned.weight_bytes + planned.adapter_bytes
    counts = 32 if planned.adapter_bytes else 0  # which the first records of adapters lack
    assert memory["weight_bytes"] in (weights, weights - counts)
    assert planned.kv_bytes / planned.num_kv_blocks == memory["kv_bytes"] / blocks
    assert planned.num_kv_blocks == pytest.approx(blocks, rel=0.01)
    assert planned.step_bytes == pytest.approx(memory["step_bytes"], abs=0.004 * H200.memory_bytes)


def test_there_are_records_to_agree_with():
    shapes = {(record["model"], record["engine"]["tensor_parallel_size"]) for record in ENGINES}
    assert {("Qwen3-0.6b shape", 1), ("Qwen3-8b shape", 1), ("Qwen3-8b shape", 2)} <= shapes


def test_the_shipped_overheads_are_what_their_records_give():
    assert main(["--check"]) == 0


def test_expected_times_are_near_the_recorded_ones():
    """Of all records, also those that came after the overheads were fitted."""
    compared = [*points(RECORDS), *workload_runs(RECORDS)]
    assert len(compared) > 20
    for each in compared:
        overheads = recorded_overheads(each.shape.weights_kind)
        assert each.floor_s < each.seconds
        assert each.floor_s < each.expected_s(overheads)
        assert each.expected_s(overheads) == pytest.approx(each.seconds, rel=0.17)
        assert overheads.worst is None or overheads.worst < 0.17
    assert {each.shape.weights_kind for each in compared} == {
        *("plain weights", "fp8 weights", "int4 weights", "experts", "fp8 experts")
    }


def test_replicas_took_as_much_longer_as_a_note_says():
    """W1 dealt to replicas, of which the slowest counts, beside what was recorded."""
    found = {}
    for record in RECORDS:
        count = (record.get("engine") or {}).get("data_parallel_size") or 1
        if record.get("workload") != "W1" or count == 1:
            continue
        timing = Timing(record_shape(record), H200)
        workload = make_workload("W1", 0, vocab_size=timing.shape.vocab_size)
        pairs = list(zip(map(len, workload.prompts), workload.max_tokens, strict=True))
        slowest = max(_seconds(timing, pairs[i::count]) for i in range(count))
        longer = record["runs"]["cold"]["median"]["seconds"] / slowest - 1
        found[count] = f"{round(100 * longer)}%"
    notes = " ".join(plan("Qwen3-0.6B", data_parallel_size=2).notes)
    assert f"took {found[2]} longer than this with 2 replicas, and {found[4]} with 4" in notes


def _seconds(timing, pairs):
    """Of prompts that begin together, each with a length and a number of tokens."""
    lengths = [length for length, _ in pairs]
    seconds = timing.prefill(len(pairs), round(sum(lengths) / len(pairs))).expected_s
    for step in range(1, max(most for _, most in pairs)):
        running = [length + step for length, most in pairs if most > step]
        mean = round(sum(running) / len(running))
        seconds += timing.decode_step(len(running), mean).expected_s
    return seconds


def test_points_are_batches_of_known_sizes():
    kinds = {(point.what, point.num_devices > 1) for point in points(RECORDS)}
    assert kinds == {("decode", False), ("decode", True), ("prefill", False), ("prefill", True)}
