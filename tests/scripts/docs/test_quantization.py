"""The tables of quantized weights say what a record says, of schemes that don't fit, too."""

from scripts.docs.quantization import bundled_table, smollm2_table, speed_table

_COMPARED = {"kl_mean": 2.5e-4, "kl_p99": 3e-3, "perplexity_ratio": 1.0002, "same_top_share": 0.96}
_ANSWERS = {"right": 449, "same_replies": 440, "story_loss": 0.3105}


def _record(**changes):
    fitting, unfit = {"int8": _COMPARED}, {"fp8": {"does_not_fit": "q_proj"}}
    int4 = {**_COMPARED, **_ANSWERS, "weight_bytes": 2_500_000, "weights": 0.34}
    return {
        "kind": "quantization",
        "commit": "0123456789",
        "machine": {"device": "cpu", "cpu": "x", "versions": {"jax": "0.11.2"}},
        "questions": 450,
        "plain": {**_ANSWERS, "right": 450, "weight_bytes": 7_350_000, "weights": 1.0},
        "schemes": {"int4": {**int4, "simulated_kl": 1.004}},
        "smollm2": {"schemes": fitting | unfit},
        **changes,
    }


def test_schemes_stand_below_the_plain_weights():
    plain, int4 = bundled_table([_record()])[2:]
    assert plain.startswith("| plain | - | - | - | - | 450 of 450 | 440 of 450 | 0.3105 |")
    assert "| 7.35 MB (100%) | - | cpu | 0.11.2 | 0123456 |" in plain
    assert int4.startswith("| `int4` | 2.5e-04 | 3.0e-03 | 1.00020 | 96.00% | 449 of 450 |")
    assert "| 2.50 MB (34%) | 1.004 |" in int4


def test_what_does_not_fit_smollm2_says_so():
    int8, fp8 = smollm2_table([_record()])[2:]
    assert int8.startswith("| `int8` | 2.5e-04 | 3.0e-03 | 1.00020 | 96.00% | cpu |")
    assert fp8.startswith("| `fp8` | does not fit | - | - | - | cpu |")


def test_without_records_or_smollm2_nothing_was_measured():
    assert bundled_table([]) == smollm2_table([]) == ["Not measured yet."]
    assert smollm2_table([_record(smollm2=None)]) == ["Not measured yet."]


def _run(workload, quantization, tree="1", tpot_s=0.005, **changes):
    median = {"tpot_s": tpot_s, "output_tokens_per_s": 1234.5, "prompt_tokens_per_s": 20.4}
    return {
        "workload": workload,
        "model": "Qwen3-8b shape",
        "engine": {"quantization": quantization},
        "tree": tree,
        "runs": {"cold": {"median": median}},
        "start_up_s": 61.4,
        "commit": "0123456789",
        "machine": {"device": "H100", "versions": {"jax": "0.11.2"}},
        **changes,
    }


def test_schemes_stand_beside_plain_weights_of_the_same_tree():
    """Not beside those of another tree, and each once."""
    records = [
        _run("W2", None, tree="0", tpot_s=0.009),
        _run("W2", "int4", tree="0", tpot_s=0.008),
        _run("W2", None),
        _run("W2", "int4", tpot_s=0.0035),
        _run("W2", "int4", tpot_s=0.003, engine={"quantization": "int4", "kv_cache_dtype": "int8"}),
        _run("W3", "FP8_DYNAMIC", tpot_s=None),
        _run("W2", None, tree="2", tpot_s=0.007),
    ]
    plain, int4, cached, dynamic = speed_table(records)[2:]
    rest = "| 1,234 | 20 | 61 | H100 | 0.11.2 | 0123456 |"
    assert plain == f"| W2 | Qwen3-8b shape | plain | 5.00 {rest}"
    assert int4 == f"| W2 | Qwen3-8b shape | `int4` | 3.50 {rest}"
    assert cached == f"| W2 | Qwen3-8b shape | `int4`, `int8` cache | 3.00 {rest}"
    assert dynamic == f"| W3 | Qwen3-8b shape | `FP8_DYNAMIC` | - {rest}"
    assert speed_table([_run("W2", None)]) == ["Not measured yet."]
