"""`jaxinfer env` says what runs here, what would be used, and why."""

import json
import types

import pytest

from jaxinfer.env import main
from jaxinfer.model.checkpoint.hub import BUNDLED_MODELS


def test_it_names_versions_device_backend_cache_and_model(capsys):
    assert main([]) == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert {"python", "jax", "jaxlib", "jaxinfer", "device", "cpu"} <= lines.keys()


def test_json_gives_the_choice_of_backend_with_its_reason(capsys):
    assert main(["--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["machine"]["platform"] == "cpu"
    assert report["attention_backend"]["auto"].startswith("numba: fastest measured on CPUs")
    assert report["attention_backend"]["numba"] == "available"
    assert report["attention_backend"]["xla"] == "available"
    assert "supported here" in report["attention_backend"]["mosaic"]


@pytest.mark.parametrize(
    ("capability", "kind", "auto"),
    [
        ("9.0", "NVIDIA H200", "mosaic: fastest measured on compute capability 9.0 for bfloat16"),
        ("8.6", "NVIDIA A10", "triton: first that can run; nothing was measured on compute capab"),
        ("7.5", "NVIDIA T4", "xla: first that can run; nothing was measured on compute capability"),
    ],
)
def test_on_a_gpu_it_says_what_auto_takes_and_what_it_passes_over(
    capsys, monkeypatch, capability, kind, auto
):
    gpu = types.SimpleNamespace(platform="gpu", device_kind=kind, compute_capability=capability)
    monkeypatch.setattr("jax.devices", lambda: [gpu])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    main([])
    lines = dict(
        line.split("  ", 1) for line in capsys.readouterr().out.splitlines() if "  " in line
    )
    assert "CPU" not in lines["device"]
    assert lines["attention auto"].strip().startswith(auto)
    if capability != "9.0":
        assert (
            f"mosaic needs a Hopper GPU (compute capability 9.x), not {capability}"
            in (lines["attention auto"])
        )


def test_without_a_gpu_it_says_that_the_cpu_is_used(capsys):
    main([])
    assert "(cpu); no GPU found, engines run on the CPU" in capsys.readouterr().out


def test_the_cache_directory_is_the_one_an_engine_would_use(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    kept = tmp_path / "jaxinfer" / "xla" / "program"
    kept.parent.mkdir(parents=True)
    kept.write_bytes(b"12345")
    main(["--json"])
    cache = json.loads(capsys.readouterr().out)["compilation_cache"]
    assert cache == {"directory": str(kept.parent), "files": 1, "bytes": 5}


@pytest.mark.parametrize("name", BUNDLED_MODELS)
def test_a_missing_bundled_model_is_said(name, capsys, monkeypatch, tmp_path):
    monkeypatch.setitem(BUNDLED_MODELS, name, tmp_path)
    main([])
    assert capsys.readouterr().out.count("missing from this installation") == 1


def test_bundled_models_are_found(capsys, monkeypatch, tmp_path):
    (tmp_path / "model.safetensors").touch()
    monkeypatch.setitem(BUNDLED_MODELS, "bundled", tmp_path)
    main(["--json"])
    report = json.loads(capsys.readouterr().out)
    assert report["bundled_model"] == str(tmp_path)
    assert report["bundled_experts"] == str(BUNDLED_MODELS["bundled-experts"])
