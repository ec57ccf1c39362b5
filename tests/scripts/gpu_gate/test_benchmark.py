"""A benchmark of a GPU check is judged by its steady state."""

from scripts.gpu_gate.benchmark import bench_row
from scripts.gpu_gate.rows import Row


def test_a_benchmark_that_compiled_while_it_measured_is_bad_and_says_so():
    speed = {
        "rows": 64,
        "prompt_tokens": 512,
        "prefill_tokens_per_s": 450_000.0,
        "prefill_of_floor": 0.5,
        "decode_step_s": 0.003,
        "decode_of_floor": None,
        "num_compilations": 0,
    }
    what = "prefill 450,000 tok/s (50% of the floor), decode 3.000 ms/step"
    assert bench_row(speed) == Row("bench 64 x 512", what, True)
    what += "; no steady state: 3 programs were compiled while it was measured"
    assert bench_row(speed | {"num_compilations": 3}) == Row("bench 64 x 512", what, False)
