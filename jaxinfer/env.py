"""`jaxinfer env`: versions, devices, and the backend an engine would use here, and why."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxinfer.cli.answers.statistics import count
from jaxinfer.cli.flags.parser import CommandParser
from jaxinfer.cli.process import OK, end_process, run_command

# The shape for which a backend is chosen; head_dim 64 has the same kernels.
_HEAD_DIM, _GROUP_SIZE, _BLOCK_SIZE = 128, 2, 16


def build_parser() -> CommandParser:
    """The flags of `jaxinfer env`."""
    parser = CommandParser("env", "Show versions, devices and the backend for an engine here.")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "-q", "--quiet", action="store_true", help="no report: the exit status says if JAX starts"
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    arguments = build_parser().parse_args(argv)
    return run_command("env", lambda: _run(as_json=arguments.json, quiet=arguments.quiet))


def _run(*, as_json: bool, quiet: bool) -> int:
    report = environment()
    if not quiet:
        print(json.dumps(report, indent=2) if as_json else "\n".join(_lines(report)))
    return OK


def environment() -> dict[str, Any]:
    """The report of `jaxinfer env`, as JSON-like values."""
    from jaxinfer.cli.platform import start_platform
    from jaxinfer.measure.machine import describe_machine

    start_platform()
    return {
        "machine": describe_machine(),
        "attention_backend": attention_backends(),
        "compilation_cache": compilation_cache(),
        "bundled_model": _found("bundled"),
        "bundled_experts": _found("bundled-experts"),
    }


def attention_backends() -> dict[str, str]:
    """The backend that attention_backend="auto" chooses for Qwen3 here, and why not another.

    Maps "auto" to "NAME: REASON", and each backend to "available" or the reason it is not.
    """
    import jax

    from jaxinfer.kernels.choice import choose_backend, compute_capability_of

    device = jax.devices()[0]
    where: Any = {
        "head_dim": _HEAD_DIM,
        "dtype": "float32" if device.platform == "cpu" else "bfloat16",
        "block_size": _BLOCK_SIZE,
        "group_size": _GROUP_SIZE,
        "platform": device.platform,
        "compute_capability": compute_capability_of(device),
    }
    name, reason = choose_backend("auto", **where)
    report = {"auto": f"{name}: {reason}"}
    for backend in ("mosaic", "triton", "numba", "xla"):
        try:
            choose_backend(backend, **where)
            report[backend] = "available"
        except ValueError as error:
            report[backend] = str(error)
    return report


def compilation_cache() -> dict[str, Any]:
    """The directory of compiled programs and their number."""
    import jax

    from jaxinfer.serving.compile.cache.persistent_cache import default_directory

    configured = jax.config.jax_compilation_cache_dir
    directory = Path(configured) if configured else default_directory()
    files = [path for path in directory.rglob("*") if path.is_file()] if directory.is_dir() else []
    return {
        "directory": str(directory),
        "files": len(files),
        "bytes": sum(path.stat().st_size for path in files),
    }


def _found(name: str) -> str | None:
    """The directory of a bundled model, or None where the installation lacks its weights."""
    from jaxinfer.model.checkpoint.hub import BUNDLED_MODELS

    directory = BUNDLED_MODELS[name]
    return str(directory) if any(directory.glob("*.safetensors")) else None


def _lines(report: dict[str, Any]) -> list[str]:
    machine, cache = report["machine"], report["compilation_cache"]
    rows = [(name, version) for name, version in machine["versions"].items()]
    device = f"{machine['num_devices']} x {machine['device']} ({machine['platform']})"
    if machine["platform"] == "cpu":
        device += "; no GPU found, engines run on the CPU"
    rows.append(("device", device))
    if machine["driver"]:
        rows.append(("driver", machine["driver"]))
    rows.append(("cpu", f"{machine['cpu']}, {count(machine['cpu_cores'], 'core')}"))
    for name, why in report["attention_backend"].items():
        rows.append((f"attention {name}", why.partition("; supported here")[0]))
    size = f"{count(cache['files'], 'file')}, {cache['bytes'] / 10**6:.1f} MB"
    rows.append(("compile cache", f"{cache['directory']} ({size})"))
    for name in ("bundled_model", "bundled_experts"):
        rows.append((name.replace("_", " "), report[name] or "missing from this installation"))
    width = max(len(name) for name, _ in rows)
    return [f"{name:<{width}}  {value}" for name, value in rows]


if __name__ == "__main__":
    end_process(main(sys.argv[1:]))
