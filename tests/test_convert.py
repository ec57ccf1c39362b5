"""`jaxinfer convert`: a directory stays loadable in either format, and mistakes give one line."""

import errno
import gc
import json
import os
import resource
import signal
import subprocess
import sys
import threading
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from jaxinfer import LLM
from jaxinfer.convert import main
from jaxinfer.model.checkpoint.hub import BUNDLED_MODEL
from jaxinfer.model.checkpoint.orbax_files import is_checkpoint
from jaxinfer.model.checkpoint.weights import load_params
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.text.tokenizer import Tokenizer
from jaxinfer.testing import TINY_SETTINGS
from tests.lazy import torch
from tests.model import small_models

COMPANIONS = (
    *("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"),
    "additional_chat_templates/tool_use.jinja",
    *("modules.json", "1_Pooling/config.json", "config_sentence_transformers.json"),
)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A directory as transformers writes it, with a tokenizer and Python files beside."""
    directory = tmp_path_factory.mktemp("source")
    small_models.save(directory, dtype=torch.bfloat16, num_hidden_layers=1)
    config = json.loads((directory / "config.json").read_text())
    config |= {"auto_map": {"AutoModel": "evil.Model"}, "kept": "yes"}
    (directory / "config.json").write_text(json.dumps(config))
    for name in ("additional_chat_templates", "1_Pooling"):
        (directory / name).mkdir()
    for name in COMPANIONS:
        (directory / name).write_text(f"{name} content")
    (directory / "evil.py").write_text("raise SystemExit")
    return directory


def load(directory, dtype=None):
    config = ModelConfig.from_directory(directory)
    return load_params(directory, config, dtype or config.dtype)


def test_to_orbax_and_back_keeps_every_value_and_companion(source, tmp_path, capfd):
    orbax, again = tmp_path / "orbax-model", tmp_path / "again"
    assert main([str(source), str(orbax)]) == 0
    assert is_checkpoint(orbax)
    assert main([str(orbax), str(again), "--quiet"]) == 0
    assert (again / "model.safetensors").exists()
    assert "(orbax)" in capfd.readouterr().err
    original = load(source)
    for directory in (orbax, again):
        jax.tree.map(np.testing.assert_array_equal, load(directory), original)
        config = json.loads((directory / "config.json").read_text())
        assert config["kept"] == "yes"
        assert "auto_map" not in config
        for name in COMPANIONS:
            assert (directory / name).read_text() == f"{name} content"
        assert not (directory / "evil.py").exists()


def test_dtype_is_converted_and_recorded(source, tmp_path):
    arguments = [str(source), str(tmp_path / "wide"), "--to", "safetensors", "--dtype", "float32"]
    assert main([*arguments, "--quiet"]) == 0
    assert ModelConfig.from_directory(tmp_path / "wide").dtype == "float32"
    jax.tree.map(np.testing.assert_array_equal, load(tmp_path / "wide"), load(source, "float32"))


@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_a_classifier_keeps_its_head(tmp_path, dtype):
    source, orbax, again = (tmp_path / name for name in ("source", "orbax", "again"))
    small_models.save_classifier(source, id2label={0: "calm", 1: "glad", 2: "sad"})
    chosen = [] if dtype is None else ["--dtype", dtype]
    assert main([str(source), str(orbax), "--quiet", *chosen]) == 0
    assert is_checkpoint(orbax)
    assert main([str(orbax), str(again), "--quiet", *chosen]) == 0
    original = load_file(source / "model.safetensors")
    written = load_file(again / "model.safetensors")
    assert {*written} == {*original}
    if dtype is None:
        for name, tensor in original.items():
            np.testing.assert_array_equal(written[name], tensor)
    assert str(written["score.weight"].dtype) == (dtype or "float32")
    settings = TINY_SETTINGS | {"dtype": "float32", "skip_tokenizer_init": True}
    found = []
    for directory in (source, orbax, again):
        with LLM(directory, runner="pooling", **settings) as llm:
            found.append(llm.classify([[5, 6, 7]])[0].logits)
    assert found[1] == found[2]
    assert found[0] == pytest.approx(found[1], abs=0 if dtype is None else 0.05)
    assert (found[0] == found[1]) == (dtype is None)


def test_a_classifier_without_its_head_is_one_line(tmp_path, capfd):
    source, orbax = tmp_path / "source", tmp_path / "orbax"
    small_models.save_classifier(source)
    assert main([str(source), str(orbax), "--quiet"]) == 0
    (orbax / "score.safetensors").unlink()
    capfd.readouterr()
    assert main([str(orbax), str(tmp_path / "again"), "--quiet"]) == 1
    error = capfd.readouterr().err
    assert "score.safetensors: missing" in error
    assert error.count("\n") == 1
    assert not (tmp_path / "again").exists()


def test_mistakes_give_one_line_and_write_nothing(source, tmp_path, capfd):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("precious")
    (tmp_path / "not-a-model").mkdir()
    for arguments, cause in (
        ([str(tmp_path / "nowhere"), str(tmp_path / "new")], "no such directory"),
        ([str(tmp_path / "not-a-model"), str(tmp_path / "new")], "config.json: no such file"),
        ([str(source), str(tmp_path / "full")], "exists and is not an empty directory"),
        ([str(source), str(tmp_path / "full" / "file")], "exists and is not an empty directory"),
    ):
        assert main(arguments) == 1
        error = capfd.readouterr().err
        assert error.startswith("jaxinfer convert: error: ")
        assert error.count("\n") == 1
        assert cause in error
    assert not (tmp_path / "new").exists()
    assert (tmp_path / "full" / "file").read_text() == "precious"


def test_an_error_of_the_library_names_the_commands_flag(tmp_path, capfd):
    model = ["bundled-experts", str(tmp_path / "new"), "-q"]
    assert main([*model, "--quantize", "int8"]) == 1
    assert (
        "jaxinfer convert: error: --quantize='int8': models with experts take plain weights"
        in capfd.readouterr().err
    )


def test_a_companion_that_links_outside_is_not_copied(source, tmp_path, capfd):
    model = tmp_path / "model"
    model.mkdir()
    for name in ("config.json", "model.safetensors"):
        (model / name).write_bytes((source / name).read_bytes())
    (tmp_path / "secret").write_text("secret")
    (model / "tokenizer.json").symlink_to(tmp_path / "secret")
    assert main([str(model), str(tmp_path / "out"), "--quiet"]) == 1
    assert "a link out of the model directory" in capfd.readouterr().err
    assert not (tmp_path / "out" / "tokenizer.json").exists()


def test_a_disk_that_is_too_small_is_one_line_before_anything_is_read(
    source, tmp_path, capfd, monkeypatch
):
    small = SimpleNamespace(free=1000)
    monkeypatch.setattr(
        "jaxinfer.model.checkpoint.conversion.shutil.disk_usage", lambda path: small
    )
    monkeypatch.setattr("jaxinfer.model.checkpoint.conversion.load_params", None)
    assert main([str(source), str(tmp_path / "out"), "--quiet"]) == 1
    error = capfd.readouterr().err
    assert f"{tmp_path / 'out'}: no space left on the disk" in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


# Orbax leaves the writes that it never began to the garbage collector, which may come much later.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.parametrize("to", ["safetensors", "orbax"])
def test_a_disk_that_fills_up_is_one_line_and_leaves_nothing(
    source, tmp_path, capfd, monkeypatch, to
):
    """A limit on the size of files stands in for a full disk: the same error at the same call."""
    usage = SimpleNamespace(free=10**12)
    monkeypatch.setattr(
        "jaxinfer.model.checkpoint.conversion.shutil.disk_usage", lambda path: usage
    )
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    monkeypatch.setattr("sys.unraisablehook", sys.unraisablehook)  # is put back
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    try:
        status = main([str(source), str(tmp_path / "out"), "--to", to, "--quiet"])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    gc.collect()
    error = capfd.readouterr().err
    assert status == 1
    assert error.count("\n") == 1, error
    # TensorStore quotes itself, and a long line keeps its two ends.
    assert "File too large" in error or "OUT_OF_RANGE" in error
    assert "memory" not in error
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_leaves_nothing_and_says_so(source, tmp_path, capfd, monkeypatch):
    def interrupted(params, config, directory, **_):
        (directory / "model.safetensors").write_text("half")
        raise KeyboardInterrupt

    monkeypatch.setattr("jaxinfer.model.checkpoint.conversion.save_params", interrupted)
    arguments = [str(source), str(tmp_path / "out"), "--to", "safetensors", "--quiet"]
    assert main(arguments) == 130
    assert f"interrupted; {tmp_path / 'out'} was not written" in capfd.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_what_a_thread_writes_after_the_error_goes_as_well(source, tmp_path, monkeypatch):
    late = []

    def fail(params, config, directory, **_):
        late.append(threading.Timer(0.05, lambda: (directory / "shard").mkdir(parents=True)))
        late[0].start()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("jaxinfer.model.checkpoint.conversion.save_params", fail)
    arguments = [str(source), str(tmp_path / "out"), "--to", "safetensors", "--quiet"]
    assert main(arguments) == 1
    late[0].join()
    assert list(tmp_path.iterdir()) == []


def test_leftovers_of_a_killed_run_do_not_block_its_repetition(source, tmp_path):
    ended = subprocess.Popen(["true"])
    ended.wait()
    killed, running = (tmp_path / f".out.partial-{pid}" for pid in (ended.pid, os.getppid()))
    for directory in (killed, running):
        directory.mkdir()
        (directory / "half").write_text("half")
    assert main([str(source), str(tmp_path / "out"), "--quiet"]) == 0
    assert not killed.exists()
    assert running.exists(), "another run may still write it"
    assert is_checkpoint(tmp_path / "out")


def test_an_empty_directory_is_filled(source, tmp_path):
    (tmp_path / "out").mkdir()
    assert main([str(source), str(tmp_path / "out"), "-q"]) == 0
    assert is_checkpoint(tmp_path / "out")


def test_an_unusable_platform_is_one_line(source, tmp_path, capfd, monkeypatch):
    def broken():
        raise RuntimeError("Unable to initialize backend 'cuda'")

    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    monkeypatch.setattr("jax.default_backend", broken)
    assert main([str(source), str(tmp_path / "out"), "-q"]) == 1
    assert "JAX_PLATFORMS=cuda allows nothing else" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("line", "status", "named"),
    [
        ("--calibrate story.txt", 2, "--calibrate needs --quantize"),
        ("--quantize int4 --max-texts 3", 2, "--max-texts needs --calibrate"),
        ("--quantize int4 --max-tokens 3", 2, "--max-tokens needs --calibrate"),
        ("--quantize W8A8 --calibrate story.txt", 1, "--quantize W8A8 --calibrate: calibration is"),
        ("--quantize fp8 --calibrate story.txt", 1, "--quantize fp8 --calibrate: calibration is"),
        ("--quantize int4 --calibrate gone", 1, "--calibrate gone: No such file or directory"),
        ("--quantize int4 --calibrate empty", 1, "empty: holds no text"),
        ("--quantize int4 --calibrate one", 1, "one: has fewer than two tokens"),
        (
            "--quantize int4 --calibrate story.txt --max-tokens 4097",
            1,
            "--max-tokens must be from 2 to 4096, the model's context, got 4097",
        ),
    ],
)
def test_mistakes_of_calibration_are_one_line_before_weights_are_read(
    tmp_path, monkeypatch, capfd, line, status, named
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("jaxinfer.model.checkpoint.conversion.load_params", None)
    for name, text in {"story.txt": "Once upon a time", "empty": " ", "one": "a"}.items():
        (tmp_path / name).write_text(text)
    arguments = [str(BUNDLED_MODEL), "out", "--quiet", *line.split()]
    if status == 2:
        with pytest.raises(SystemExit, match="2"):
            main(arguments)
    else:
        assert main(arguments) == status
    error = capfd.readouterr().err
    assert named in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_windows_of_all_files_calibrate_up_to_a_number(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    seen = []

    def told(params, config, texts, progress):
        seen.extend(texts)
        raise KeyboardInterrupt

    monkeypatch.setattr("jaxinfer.model.calibration.calibrate.calibrate", told)
    (tmp_path / "b.txt").write_text("The dog was happy.")
    files = ["--calibrate", "a.jsonl", "--calibrate", "b.txt", "--max-tokens", "5"]
    tokenizer = Tokenizer.from_directory(BUNDLED_MODEL)
    first, last = map(
        tokenizer.encode, ("Once upon a time there was a king.", "The dog was happy.")
    )
    (tmp_path / "a.jsonl").write_text('"Once upon a time there was a king."\n')
    for most, expected in ((1, [first[:5]]), (4, [first[:5], first[5:], last[:5], last[5:]])):
        seen.clear()
        chosen = ["--quantize", "int4", *files, "--max-texts", str(most), "--quiet"]
        assert main([str(BUNDLED_MODEL), "out", *chosen]) == 130
        assert [list(each) for each in seen] == [each for each in expected if len(each) > 1]
