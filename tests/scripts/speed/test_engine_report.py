"""Reports for people name what the figures stand on."""

from scripts.speed.engine_report import report_lines

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
SPEED = {
    "rows": 64,
    "prompt_tokens": 512,
    "prefill_s": 0.1,
    "prefill_tokens_per_s": 327_680.0,
    "decode_step_s": 0.003,
    "decode_tokens_per_s": 21_333.0,
    "prefill_of_floor": 0.5,
    "decode_of_floor": 0.25,
    "num_compilations": 0,
}


def test_the_table_names_model_dtype_backend_device_and_versions():
    lines = report_lines({**HEADING, "repeats": 3, "speeds": [SPEED]})
    assert lines[0] == "Qwen3-0.6b shape, bfloat16, mosaic attention"
    assert lines[1] == "1 x NVIDIA H200; jax 0.11.2"
    assert "decode ms/step" in lines[3]
    assert lines[4].split() == [
        *("64", "512", "100.00", "327,680", "3.000", "21,333"),
        *("50%", "/", "25%"),
    ]
    assert "compiled while measuring: 0" in lines[-1]


def test_a_chip_without_known_ceilings_has_a_dash():
    speed = SPEED | {"prefill_of_floor": None, "decode_of_floor": None}
    assert report_lines({**HEADING, "repeats": 3, "speeds": [speed]})[4].split()[-1] == "-"
