"""`jaxinfer evaluate`: what it prints and writes of two models, and one line for every mistake."""

import dataclasses
import json
import shutil
from xml.etree import ElementTree

import pytest

from jaxinfer import ModelConfig, Quantization, load_params, save_params
from jaxinfer.__main__ import dispatch
from jaxinfer.evaluation import comparison
from jaxinfer.model.checkpoint.hub import BUNDLED_MODEL
from jaxinfer.model.experts import Experts
from jaxinfer.model.quantized.params import quantize_params
from jaxinfer.testing import tiny_params
from tests.model import tiny

CONFIG = tiny.config(vocab_size=2048, dtype="float32")
STORY = "Once upon a time, there was a wise whale. It lived in a tower, and it was happy."


def _write(directory, config, params, tokenizer=BUNDLED_MODEL):
    save_params(params, config, directory)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(tokenizer / name, directory / name)
    return str(directory)


def _quantized(config, params):
    config = dataclasses.replace(config, quantization=Quantization("int8"))
    return config, quantize_params(params, config.quantization)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Directories of a tiny model with the bundled tokenizer, as it is and in int8; and texts."""
    home = tmp_path_factory.mktemp("models")
    params = tiny_params(CONFIG)
    _write(home / "plain", CONFIG, params)
    _write(home / "int8", *_quantized(CONFIG, params))
    (home / "story.txt").write_text(STORY)
    (home / "lines.jsonl").write_text('{"text": "2 + 3 = 5"}\n"The king was happy."\n')
    return home


@pytest.fixture
def run(home, monkeypatch, capsys):
    monkeypatch.chdir(home)

    def run(line, status=0):
        assert dispatch(["evaluate", *line.split()]) == status
        return capsys.readouterr()

    return run


@pytest.mark.slow
def test_two_models_are_compared_for_people_and_programs(run, tmp_path):
    files = f"--json {tmp_path}/figures.json --plot {tmp_path}/layers.svg"
    output = run(f"int8 --against plain --text story.txt lines.jsonl --worst 2 {files} -q")
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert (figures["model"], figures["reference"]) == ("int8", "plain")
    assert figures["dtypes"] == ["float32", "float32"]
    kl = figures["kl"]
    assert 0 < kl["median"] < kl["mean"] < kl["p99"] < kl["max"] < 0.5
    assert 0.5 < figures["same_top_share"] <= 1
    assert len(figures["layer_errors"]) == CONFIG.num_hidden_layers
    texts = figures["texts"]
    assert [each["text"] for each in texts] == ["story.txt", "lines.jsonl:1", "lines.jsonl:2"]
    assert figures["tokens"] == sum(each["tokens"] for each in texts)
    mean = sum(each["tokens"] * each["mean_kl"] for each in texts) / figures["tokens"]
    assert mean == pytest.approx(kl["mean"])

    lines = output.out.splitlines()
    assert lines[:2] == ["model int8, computed in float32", "reference plain, computed in float32"]
    assert lines[2] == f"{figures['tokens']} predicted tokens in 3 texts"
    both = f"{figures['perplexity']:.4f}, of the reference {figures['reference_perplexity']:.4f}"
    assert both in lines[3]
    assert f"mean {kl['mean']:.3g}, median {kl['median']:.3g}" in lines[4]
    worst = sorted(texts, key=lambda each: -each["mean_kl"])
    listed = lines[lines.index("") + 3 :][:3]
    for line, each in zip(listed, worst[:2], strict=False):
        place = f"  {each['text']}: {each['start']!r}"
        assert line.endswith(place)
        figures_of_text = line.removesuffix(place).split()
        assert figures_of_text == [f"{each['mean_kl']:.3g}", str(each["most_changed"])]
    assert listed[2] == ""
    assert lines[-1].split()[1] == f"{figures['layer_errors'][0]:.3g}"
    assert output.err == ""
    chart = ElementTree.fromstring((tmp_path / "layers.svg").read_text())
    assert "int8 against plain" in "".join(chart.itertext())


def test_the_use_of_experts_is_printed_written_and_drawn(run, home, tmp_path):
    experts = Experts(6, 2, 24, dense_layers=(1,))  # of no other test: compiled here
    config = dataclasses.replace(
        CONFIG, model_type="qwen3_moe", num_hidden_layers=3, experts=experts
    )
    _write(home / "moe", config, tiny_params(config))
    files = f"--json {tmp_path}/a.json --plot {tmp_path}/experts.svg"
    output = run(f"moe --experts --text story.txt lines.jsonl {files} -q")
    figures = json.loads((tmp_path / "a.json").read_text())
    use = figures["experts"]
    assert (use["layers"], use["steps"]) == ([0, 2], 3)
    tokens = figures["tokens"] + 3  # the first of each text is not predicted
    assert [sum(load) for load in use["load"]] == [2 * tokens] * 2
    lines = output.out.splitlines()
    at = lines.index("experts: 6 in each of 2 layers; a step is a text") + 1
    assert lines[at].split() == ["layer", "imbalance", "distinct", "unused", "hottest", "experts"]
    assert len(lines) == at + 3
    for line, row in zip(lines[at + 1 :], range(2), strict=True):
        load = use["load"][row]
        first = max(range(6), key=lambda i: (load[i], -i))
        words = line.split()
        assert words[:2] == [str(use["layers"][row]), f"{use['imbalance'][row]:.2f}"]
        assert words[2:4] == [f"{use['distinct'][row]:.1f}", str(load.count(0))]
        assert words[4:6] == [str(first), f"({load[first] / sum(load):.1%}),"]
    chart = ElementTree.fromstring((tmp_path / "experts.svg").read_text())
    assert "Experts of moe" in "".join(chart.itertext())


def test_one_model_has_a_perplexity_and_nothing_else(run, tmp_path):
    output = run(f"plain --text story.txt --max-tokens 8 --max-texts 2 --json {tmp_path}/a.json")
    figures = json.loads((tmp_path / "a.json").read_text())
    assert [(each["first_token"], each["tokens"]) for each in figures["texts"]] == [(0, 7), (8, 7)]
    assert figures["max_tokens"] == 8
    assert figures["reference"] is None
    assert not {"kl", "reference_perplexity", "layer_errors"} & figures.keys()
    assert output.out.splitlines() == [
        "model plain, computed in float32",
        "14 predicted tokens in 2 texts",
        f"perplexity {figures['perplexity']:.4f}",
    ]
    assert "Evaluating" in output.err


def test_the_dtype_is_the_models_own_or_the_one_given(run, home):
    half = dataclasses.replace(CONFIG, dtype="bfloat16")
    _write(home / "half", half, tiny_params(half, "bfloat16"))
    own = run("half --text story.txt -q").out
    assert "computed in bfloat16" in own
    given = run("half --text story.txt --dtype float32 -q").out
    assert "computed in float32" in given
    assert own.split()[-1] != given.split()[-1]


def test_models_of_other_depth_have_no_errors_of_layers(run, home, tmp_path):
    short = dataclasses.replace(CONFIG, num_hidden_layers=1)
    _write(home / "short", short, tiny_params(short))
    line = "short --against plain --text story.txt -q"
    assert "layers are not compared" in run(line).out
    output = run(f"{line} --plot {tmp_path}/a.svg", status=1)
    assert "a.svg: not written, since the models' layers can't be compared" in output.err
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def others(home):
    """Models that can't be compared with the plain one."""
    wide = dataclasses.replace(CONFIG, vocab_size=2050)
    _write(home / "wide", wide, tiny_params(wide))
    narrow = dataclasses.replace(CONFIG, vocab_size=300)
    _write(home / "narrow", narrow, tiny_params(narrow))
    for name in ("spelling", "silent", "damaged"):
        shutil.copytree(home / "plain", home / name)
    file = home / "spelling" / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    tokenizer["model"]["merges"] = tokenizer["model"]["merges"][:100]
    file.write_text(json.dumps(tokenizer))
    (home / "silent" / "tokenizer.json").unlink()
    (home / "damaged" / "model.safetensors").write_bytes(b"x")


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("gone --text story.txt", "gone: no such directory"),
        ("./gone --text story.txt", "./gone: no such directory"),
        ("plain --against ./gone --text story.txt", "./gone: no such directory"),
        ("wide --against plain --text story.txt", "wide: vocab_size is 2050, plain has 2048"),
        ("spelling --against plain --text story.txt", "story.txt: the two models' tokenizers"),
        ("silent --text story.txt", "silent/tokenizer.json: no such file"),
        ("narrow --text story.txt", "narrow: its tokenizer makes token "),
        ("plain --text gone.txt", "--text gone.txt: No such file or directory"),
        ("plain --text story.txt --max-tokens 1", "--max-tokens must be from 2 to 64"),
        ("plain --text story.txt --max-tokens 65", "--max-tokens must be from 2 to 64"),
        ("plain --text story.txt --json gone/a", "gone/a: can't be written: gone is no directory"),
        ("plain --text story.txt --json plain", "plain: is a directory; give a file"),
        ("int8 --quantization fp8 --text story.txt", "--quantization='fp8' quantizes plain"),
        ("plain --text story.txt --experts", "plain has no experts (model_type qwen3); leave"),
    ],
)
def test_a_mistake_is_one_line_before_weights_are_read(run, others, line, named, monkeypatch):
    monkeypatch.setattr("jaxinfer.model.checkpoint.weights.load_params", pytest.fail)
    output = run(line, status=1)
    assert output.out == ""
    assert output.err.startswith(f"jaxinfer evaluate: error: {named}")
    assert output.err.count("\n") == 1


def test_weights_that_can_not_be_read_are_one_line(run, others):
    assert run("damaged --text story.txt -q", status=1).err.startswith(
        "jaxinfer evaluate: error: damaged/model.safetensors: "
    )


def test_a_text_on_which_a_model_fails_is_named(run, monkeypatch):
    def fails(*_):
        raise ValueError("texts[1]: logits are not finite")

    monkeypatch.setattr("jaxinfer.evaluation.compare", fails)
    error = run("plain --text lines.jsonl -q", status=1).err
    assert error == "jaxinfer evaluate: error: lines.jsonl:2: logits are not finite\n"


def test_memory_that_runs_out_names_the_flags_that_help(run, monkeypatch):
    def fails(*_):
        raise RuntimeError("RESOURCE_EXHAUSTED: out of memory")

    monkeypatch.setattr(comparison, "_read", fails)
    error = run("plain --text lines.jsonl -q", status=1).err
    assert "lower --max-tokens, take a smaller --dtype" in error
    assert "--gpu-memory-utilization" not in error


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("plain", "required: --text"),
        ("--text story.txt", "required: model"),
        ("plain --text story.txt --plot a.svg", "--plot compares two models"),
        ("plain --text story.txt --worst 2", "--worst compares two models"),
        ("plain --text story.txt --experts --worst 2", "--worst compares two models"),
        ("plain --against int8 --text story.txt --experts", "--experts is about one model"),
        ("plain --against int8 --text story.txt --plot a.png", "--plot must end in .svg"),
        ("plain --text story.txt --max-texts 0", "--max-texts: expected one positive integer"),
    ],
)
def test_flags_that_do_not_fit_are_one_line(run, line, named):
    output = run(line, status=2)
    assert named in output.err
    assert output.err.count("\n") == 1


@pytest.mark.slow
def test_the_bundled_model_hardly_changes_in_int8(run, tmp_path):
    config = ModelConfig.from_directory(BUNDLED_MODEL)
    params = load_params(BUNDLED_MODEL, config, config.dtype)
    int8 = _write(tmp_path / "int8", *_quantized(config, params))
    texts = f"--text story.txt --json {tmp_path}/a.json -q"
    run(f"bundled --against bundled {texts}")
    same = json.loads((tmp_path / "a.json").read_text())
    assert {*same["kl"].values()} == {0.0}
    assert same["perplexity"] == same["reference_perplexity"]
    assert (same["same_top_share"], {*same["layer_errors"]}) == (1.0, {0.0})
    run(f"{int8} --against bundled {texts}")
    changed = json.loads((tmp_path / "a.json").read_text())
    assert 0 < changed["kl"]["mean"] < 0.01
    assert all(0.001 < error < 0.03 for error in changed["layer_errors"])
    assert changed["reference_perplexity"] == same["perplexity"]


@pytest.mark.slow
def test_both_bundled_models_are_known_by_name(run, tmp_path):
    line = "bundled-experts --against bundled --text story.txt"
    output = run(f"{line} --max-tokens 32 --json {tmp_path}/a.json -q")
    assert output.out.splitlines()[0] == "model bundled-experts, computed in bfloat16"
    figures = json.loads((tmp_path / "a.json").read_text())
    assert 0 < figures["kl"]["mean"] < 2
    assert figures["perplexity"] != figures["reference_perplexity"]
