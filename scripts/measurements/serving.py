"""Measures a server's speed from outside, beside `LLM.generate` on the same requests."""

import contextlib
import dataclasses
import json
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from jaxinfer.cores import usable_cores

_START_LIMIT_S, _STOP_LIMIT_S, _CHILD_LIMIT_S = 300.0, 30.0, 300.0
_MODEL = "model"
_CLIENT_PROCESSES = 4
_FRONT_END = "front_end_process"  # in the command lines of front ends
# Ids that every tokenizer of a published size has, and none that ends an answer.
_VOCAB_SIZE = 10_000


def serving_report(
    model_shape: str,
    arrivals: Sequence[tuple[float | None, int]],
    *,
    input_len: int,
    output_len: int,
    repeats: int,
    flags: Sequence[str],
) -> dict[str, Any]:
    """Serve random weights, and measure the server under several loads.

    The prefix cache is off. Client and server share the machine.

    Args:
        model_shape: see `jaxinfer.planning.named_shapes`.
        arrivals: of each load its requests a second (None: all at once) and its requests.
        input_len: tokens of a prompt.
        output_len: tokens of an answer.
        repeats: measurements of a load that comes all at once, of which the median counts.
        flags: more flags of `jaxinfer serve`.

    Raises:
        RuntimeError: the server does not start or end, or something was compiled, found in the
            prefix cache or answered wrongly while it was measured.
    """
    from jaxinfer.cli.client.load import Load

    loads = [
        Load(
            model=_MODEL,
            num_prompts=count,
            input_len=input_len,
            output_len=output_len,
            vocab_size=_VOCAB_SIZE,
            request_rate=rate,
            seed=number,
        )
        for number, (rate, count) in enumerate(arrivals)
    ]
    with tempfile.TemporaryDirectory() as directory:
        _child("checkpoint", model_shape, directory)
        _say("weights written")
        command = [*("serve", directory, "--served-model-name", _MODEL), *flags]
        command += ["--no-enable-prefix-caching", "--quiet"]
        with _server(command) as (port, ready_s, process_id):
            num_front_ends = _num_front_ends(process_id)
            _say(f"serving, ready after {ready_s:.1f} s")
            served = [_measured(port, load, repeats) for load in loads]
        offline = None
        at_once = [load for load in loads if load.request_rate is None]
        if at_once:
            load = json.dumps(dataclasses.asdict(at_once[0]))
            engine = json.dumps({"enable_prefix_caching": False})
            offline = json.loads(_child("generate", directory, load, engine))
            _say("LLM.generate measured")
    return {
        "model": f"Qwen3-{model_shape} shape",
        "flags": list(flags),
        "cores": usable_cores(),
        "num_front_ends": num_front_ends,
        "ready_s": ready_s,
        "loads": served,
        "offline": offline,
    }


def serving_lines(report: dict[str, Any]) -> list[str]:
    """The report for people."""
    begin = f"{report['model']}: served, ready after {report['ready_s']:.1f} s"
    lines = [f"{begin}; {report['cores']} cores, {report['num_front_ends']} front ends"]
    for load in report["loads"]:
        rate = load["request_rate"]
        arrivals = "at once" if rate is None else f"{rate:g} a second"
        ttft, tpot = load["ttft_ms"], load["tpot_ms"]
        lines.append(
            f"  {load['num_prompts']} requests {arrivals}: "
            f"{load['output_tokens_per_s']:,.0f} output tok/s, "
            f"TTFT {ttft['mean']:.1f} / {ttft['p99']:.1f} ms, "
            f"TPOT {tpot['mean']:.2f} / {tpot['p99']:.2f} ms (mean / p99)"
        )
    if report["offline"] is not None:
        rate = report["offline"]["output_tokens_per_s"]
        lines.append(f"  LLM.generate on the requests at once: {rate:,.0f} output tok/s")
    return lines


def _measured(port: int, load: Any, repeats: int) -> dict[str, Any]:
    """One load's figures; the same load is sent once before, and not measured.

    Those of a load at once are of the run with the median speed (the slower one of two), for they
    last seconds only.
    """
    from jaxinfer.cli.client.load_report import measure_server
    from jaxinfer.cli.client.server import Target

    target = Target("127.0.0.1", port)
    warm = dataclasses.replace(load, seed=load.seed + 1000, num_prompts=min(load.num_prompts, 300))
    measure_server(target, warm, slos={}, num_processes=_CLIENT_PROCESSES)
    before = _compilations(port)
    runs = []
    for _ in range(repeats if load.request_rate is None else 1):
        runs.append(measure_server(target, load, slos={}, num_processes=_CLIENT_PROCESSES))
        _check(runs[-1])
    if compiled := _compilations(port) - before:
        raise RuntimeError(f"a load's figures don't stand: {compiled:.0f} programs were compiled")
    runs.sort(key=lambda run: run["output_tokens_per_s"])
    speeds = [run["output_tokens_per_s"] for run in runs]
    median = runs[(len(runs) - 1) // 2]
    _say(f"{load.num_prompts} requests measured: {median['output_tokens_per_s']:,.0f} tok/s")
    return {**median, "num_compilations": compiled, "output_tokens_per_s_of_runs": speeds}


def _say(what: str) -> None:
    """Say how far a measurement of minutes is."""
    print(time.strftime("%H:%M:%S"), what, flush=True)


def _check(report: Mapping[str, Any]) -> None:
    """Refuse figures of answers that were wrong or found in the prefix cache."""
    wrong = [name for name in ("errors", "usage_differs", "cached_tokens") if report[name]]
    if wrong:
        what = ", ".join(f"{name} {report[name]}" for name in wrong)
        raise RuntimeError(f"a load's figures don't stand: {what}")


def _num_front_ends(process_id: int) -> int:
    """Front ends among a server's processes."""
    children = psutil.Process(process_id).children()
    return sum(any(_FRONT_END in word for word in child.cmdline()) for child in children)


def _compilations(port: int) -> float:
    metrics = _get(port, "/metrics").decode()
    found = re.search(r"^jaxinfer:num_compilations(?:_total)?(?:\{.*\})? (\S+)", metrics, re.M)
    if found is None:
        raise RuntimeError("the server's metrics say nothing of compilations")
    return float(found[1])


@contextlib.contextmanager
def _server(words: Sequence[str]) -> Iterator[tuple[int, float, int]]:
    """A running server's port, the seconds until it was ready, and its process id."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    begin = time.perf_counter()
    command = [sys.executable, "-m", "jaxinfer", *words, "--port", str(port)]
    process = subprocess.Popen(command)
    try:
        _wait_until_ready(process, port)
        yield port, time.perf_counter() - begin, process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise RuntimeError("the server did not end after SIGTERM") from None


def _wait_until_ready(process: "subprocess.Popen[bytes]", port: int) -> None:
    end = time.perf_counter() + _START_LIMIT_S
    while time.perf_counter() < end:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with status {process.returncode}")
        with contextlib.suppress(OSError, urllib.error.URLError):
            _get(port, "/ready")
            return
        time.sleep(0.1)
    raise RuntimeError(f"the server is not ready after {_START_LIMIT_S:.0f} s")


def _get(port: int, path: str) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
        return answer.read()


def _child(*words: str) -> str:
    """Run a part of `serving_child.py`; the last line of what it prints.

    Raises:
        RuntimeError: it failed.
    """
    command = [sys.executable, "-m", "scripts.measurements.serving_child", *words]
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        command, cwd=root, stdout=subprocess.PIPE, text=True, timeout=_CHILD_LIMIT_S, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{words[0]} ended with status {done.returncode}")
    return done.stdout.strip().rpartition("\n")[2]
