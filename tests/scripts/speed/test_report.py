"""Reports for people name what the figures stand on."""

import types

import jax

from scripts.speed.report import memory_record, workload_lines

HEADING = {
    "model": "Qwen3-0.6b shape",
    "dtype": "bfloat16",
    "attention_backend": "mosaic",
    "machine": {
        "platform": "gpu",
        "device": "NVIDIA H200",
        "num_devices": 1,
        "versions": {"jax": "0.11.2"},
    },
}


def test_a_workload_gives_its_medians_and_its_share_of_the_floor():
    run = {
        "median": {
            "seconds": 2.0,
            "output_tokens_per_s": 1000.0,
            "prompt_tokens_per_s": 500.0,
            "ttft_s": 0.01,
            "tpot_s": 0.002,
        },
        "spread": 1.02,
        "floor": {"total_s": 1.0},
    }
    report = {
        **HEADING,
        "workload": "W2",
        "description": "one sequence",
        "runs": {"cold": run},
        "start_up_s": 12.0,
        "start_up": {
            "load_s": 1.0,
            "plan_s": 2.5,
            "compile_s": 7.0,
            "allocate_s": 0.5,
            "lower_s": 3.25,
            "xla_s": 60.0,
            "num_traced": 4,
            "num_read": 26,
        },
        "compiled_at_start": 30,
        "num_compilations": 0,
        "clocks": {
            "sm_mhz": 1410.0,
            "highest_sm_mhz": 1980.0,
            "power_w": 698.2,
            "power_limit_w": 700.0,
            "temperature_c": 61.0,
            "readings": 70,
        },
        "device_time": {"kinds": {"attention": 0.75, "other": 0.25}},
    }
    text = "\n".join(workload_lines(report))
    for words in ("W2: one sequence", "1,000 output tok/s", "TTFT 10.0 ms", "TPOT 2.000 ms"):
        assert words in text
    assert "50% of the floor" in text
    assert "clock 1,410 of 1,980 MHz, power 698 of 700 W, 61 C" in text
    assert "75.0% attention" in text
    assert "compiled while measuring: 0" in text
    assert "loading 1.0 s, planning 2.5, compiling 7.0, allocating 0.5" in text
    assert "4 programs traced here, 26 read" in text


def _memory_of(monkeypatch, **report):
    device = types.SimpleNamespace(
        memory_stats=lambda: {"bytes_limit": 75, "bytes_in_use": 40, "peak_bytes_in_use": 60}
    )
    monkeypatch.setattr(jax, "local_devices", lambda: [device])
    monkeypatch.delenv("XLA_CLIENT_MEM_FRACTION", raising=False)
    monkeypatch.delenv("XLA_PYTHON_CLIENT_MEM_FRACTION", raising=False)
    llm = types.SimpleNamespace(
        kv_bytes=25, num_kv_blocks=5, report=types.SimpleNamespace(**report)
    )
    return memory_record(llm)


def test_memory_that_nobody_planned_is_the_peak_less_weights_cache_and_largest_step(monkeypatch):
    memory = _memory_of(monkeypatch, weight_bytes=10, step_bytes=20)
    assert memory["other_bytes"] == 60 - 10 - 25 - 20
    assert (memory["device_bytes"], memory["kv_share"]) == (100, 0.25)


def test_memory_is_not_judged_where_the_largest_step_is_not_known(monkeypatch):
    assert _memory_of(monkeypatch, weight_bytes=10, step_bytes=None)["other_bytes"] is None
