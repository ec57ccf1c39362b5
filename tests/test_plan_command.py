"""`jaxinfer plan` prints and compares plans, without JAX."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from jaxinfer.model.checkpoint.hub import BUNDLED_MODEL
from jaxinfer.plan import main

_HEAVY = ("jax", "flax", "numpy", "orbax", "tokenizers", "transformers", "huggingface_hub", "tqdm")


def _output(capsys, *arguments, status=0):
    assert main(list(arguments)) == status
    output = capsys.readouterr()
    assert output.err == ""
    return output.out


def test_a_plan_shows_parts_memory_times_and_capacity(capsys):
    text = _output(capsys, "Qwen3-8B")
    assert text.startswith("Qwen3-8B (8.19 billion parameters)\nin bfloat16 on H200, 2,048 tokens")
    assert re.search(r"^mlp +5,435,817,984 +10,871\.6 +10,871\.6  L·3·E·F = 36·3", text, re.M)
    assert re.search(r"^KV cache +105\.19  47,872 blocks of 16: 765,936 tokens", text, re.M)
    row = re.search(r"^ +64 +([\d,.]+) +([\d,]+) +\d+% +7\.54 +9\.\d+ +\d+% +7,\d+$", text, re.M)
    assert row, text
    assert re.search(r"^ +32,768 +23$", text, re.M)
    assert re.search(r"^ +256 +2,976$", text, re.M)
    assert max(map(len, text.splitlines())) <= 100


def test_a_draft_head_has_its_lines(capsys):
    head = '{"method": "eagle3", "model": "bundled"}'
    arguments = (str(BUNDLED_MODEL), "--dtype", "bfloat16", "--speculative-config", head)
    text = _output(capsys, *arguments)
    assert re.search(r"^draft head +0\.00  whole on each device$", text, re.M)
    assert re.search(r"^KV cache .* tokens of 5,120 bytes$", text, re.M)
    assert "a draft head reads of a token: 1,024 bytes, whole on each" in text
    assert max(map(len, text.splitlines())) <= 100


def test_what_does_not_fit_is_said_and_is_the_status(capsys):
    text = _output(capsys, "Qwen3-8B", "--device", "a10", "--batch", "1,128", status=1)
    assert "Does not fit: 128 sequences of 2,048 tokens. Any of these does:" in text
    assert re.search(r"^ +128 .* does not fit$", text, re.M)
    assert "tensor parallelism over 4 devices (--tp 4)" in text
    assert _output(capsys, "Qwen3-8B", "--device", "t4", "-q", status=1) == ""


def test_a_context_grows_by_overrides(capsys):
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    overrides = json.dumps({"rope_scaling": yarn})
    arguments = ("Qwen3-8B", "--context", "131072", "--context-parallel-size", "2")
    text = _output(capsys, *arguments, "--hf-overrides", overrides)
    assert "131,072 tokens a sequence" in text
    assert re.search(r"^131,072 +11$", text, re.M)


def test_the_engines_short_flags_and_tiers_are_taken(capsys):
    arguments = ("Qwen3-0.6B", "-tp", "2", "-dp", "2", "--kv-offloading-size", "4")
    tiers = ("--kv-offloading-directory", "/kept", "--kv-offloading-disk-size", "9")
    assert "2 replicas of 2 x H200" in _output(capsys, *arguments, *tiers)
    assert "2 stages of H200" in _output(capsys, "Qwen3-0.6B", "-pp", "2")


def test_sizes_of_adapters_need_adapters(capsys):
    with pytest.raises(SystemExit):
        main(["Qwen3-0.6B", "--max-loras", "4"])
    assert "--max-loras needs --enable-lora" in capsys.readouterr().err


def test_devices_and_models_are_compared_in_one_table(capsys):
    text = _output(capsys, "Qwen3-8B", "--compare", "a100,Llama-2-7B,T4", status=1)
    lines = text.splitlines()
    assert [line.split("  ")[0] for line in lines[1:5]] == [
        "Qwen3-8B",
        "Qwen3-8B",
        "Llama-2-7B",
        "Qwen3-8B",
    ]
    assert "A100 80GB" in lines[2]
    assert lines[3].count("*") == 3  # floors: no run of it was recorded
    assert lines[4].split()[-4:] == ["-"] * 4
    assert "  Qwen3-8B, T4: tensor parallelism over 2 devices (--tp 2)" in lines


def test_json_is_an_object_or_a_list(capsys):
    one = json.loads(_output(capsys, "Qwen3-0.6B", "--json", "--batch", "4"))
    assert one["model"] == "Qwen3-0.6B"
    two = json.loads(_output(capsys, "Qwen3-0.6B", "--json", "--compare", "l40s"))
    assert [each["chip"]["name"] for each in two] == ["H200", "L40S"]


def test_an_engine_for_pooling_has_times_of_prompts_alone(capsys):
    text = _output(capsys, "Qwen3-0.6B", "--runner", "pooling", "--batch", "4")
    assert re.search(r"^batch +ms: floor +expected +MFU +prompt tok/s$", text, re.M)
    assert "TPOT" not in text
    assert "slots" not in text
    assert "a token decoded alone" not in text
    text = _output(capsys, "Qwen3-0.6B", "--runner", "pooling", "--compare", "a100")
    assert re.search(r"^Qwen3-0.6B +A100 80GB .* - +256 ", text, re.M)
    assert "Without TPOT nothing is generated" in text
    assert "Without TPOT" not in _output(capsys, "Qwen3-0.6B", "--compare", "a100")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nosuch"], "one of Qwen3-0.6B"),
        (["Qwen3-8B", "--device", "h300"], "unknown device 'h300'"),
        (["Qwen3-8B", "--compare", "h100,what"], "what: no such directory"),
        (["Qwen3-8B", "--compare", "1:2"], "a device's numbers are"),
        (["Qwen3-8B", "--tp", "3"], "sizes that work"),
        (["Qwen3-8B", "--context", "999999"], "at most the model's"),
        (["Qwen3-8B", "--compare", ""], "--compare has an empty name"),
        (["Qwen3-8B", "--compare", "h100,,a100"], "--compare has an empty name"),
        (["Qwen3-8B", "--compare", "2xh300"], "unknown device 'h300'"),
        (["Qwen3-8B", "--compare", "3xh100"], "sizes that work"),
        (["Qwen3-8B", "--device", "80:-1:1"], "bandwidth in GB/s must be from 1 "),
        (["Qwen3-8B", "--max-num-seqs", "4", "--batch", "8"], "is more than --max-num-seqs=4, "),
        (["Qwen3-8B", "--speculative-config", '{"method": "x"}'], "--speculative-config: method"),
        (["Qwen3-30B-A3B", "--expert-parallel-size", "2"], "needs --enable-expert-parallel; add"),
        (["Qwen3-8B", "--hf-overrides", '{"ropes": 1}'], "--hf-overrides: the engine reads no"),
    ],
)
def test_mistakes_are_one_line(capsys, arguments, message):
    assert main(arguments) == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("jaxinfer plan: error: ")
    assert message in output.err
    assert output.err.count("\n") == 1


def test_the_command_loads_nothing_heavy_and_makes_few_calls():
    code = (
        "import sys\nfrom tests.call_count import calls_of\nfrom jaxinfer.plan import main\n"
        "calls = calls_of(lambda: main(['Qwen3-8B', '-q']))\n"
        f"print([m for m in {_HEAVY!r} if m in sys.modules], calls)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found, calls = done.stdout.splitlines()[-1].rsplit(" ", 1)
    assert found == "[]"
    assert int(calls) < 200_000  # some hundredths of a second


def test_the_table_on_its_page_is_what_the_command_prints(capsys):
    page = (Path(__file__).resolve().parents[1] / "docs" / "tasks" / "plan.md").read_text()
    (command,) = re.findall(r"```bash\njaxinfer plan (.*)\n```\n\n```text", page)
    printed = _output(capsys, *shlex.split(command)).split("\n\n")[0]
    assert f"```text\n{printed}\n```" in page


def test_a_device_that_is_named_twice_is_compared_once(capsys):
    plans = json.loads(_output(capsys, "Qwen3-0.6B", "--json", "--compare", "H200,a10,1xa10"))
    assert [plan["chip"]["name"] for plan in plans] == ["H200", "A10"]


def test_numbers_of_devices_are_compared(capsys):
    text = _output(capsys, "Qwen3-32B", "--batch", "8", "--compare", "2xh100, 4xa100")
    assert re.search(r"^Qwen3-32B +2 x H100 SXM ", text, re.M)
    assert re.search(r"^Qwen3-32B +4 x A100 80GB ", text, re.M)


def test_a_tokens_keys_and_values_are_a_formula(capsys):
    text = _output(capsys, "Qwen3-8B", "--tp", "2")
    assert "2·L·K·D = 2·36·4·128 values of 2 bytes = 73,728 bytes of each device" in text


def test_the_cache_has_vllms_names_too(capsys):
    long, short = (
        _output(capsys, "Qwen3-8B", "--kv-cache-dtype", name) for name in ("fp8_e4m3", "fp8")
    )
    assert long == short
    assert "values of a byte" in short
