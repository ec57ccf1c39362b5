"""Engines whose KV blocks outlive them in files: found by later ones, and never a wrong answer."""

import functools
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxinfer import LLM, EngineConfig, Intervention, LoRARequest, SamplingParams
from jaxinfer.errors import CapacityError
from jaxinfer.serving.engine.metrics import Counter, Gauge
from jaxinfer.serving.prefix_tiers.block_file import file_bytes
from jaxinfer.serving.prefix_tiers.block_rows import BlockRow
from jaxinfer.serving.prefix_tiers.file_tier import FileTier
from jaxinfer.serving.prefix_tiers.file_writer import FileWriter
from jaxinfer.serving.prefix_tiers.host_tier import HostTier
from jaxinfer.serving.programs.kinds.block_rows import BlockRowCopies
from jaxinfer.serving.startup.files import SharedFiles
from jaxinfer.testing import TINY_CONFIG, tiny_llm, tiny_params
from tests.serving.adapters.small_adapters import matrices, save_peft, tree
from tests.serving.small_llm import ids

pytestmark = pytest.mark.usefixtures("always_fetching")

GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
PROMPTS = [[(i * 50 + j * 7) % 500 + 1 for j in range(50)] for i in range(8)]
"""Of three full blocks each, beside a last one."""
BLOCK_BYTES = 16 * TINY_CONFIG.num_hidden_layers * 2 * 2 * TINY_CONFIG.head_dim * 4
ALL = [48] * len(PROMPTS)
"""The cached tokens where all of these blocks are found."""


def engine(directory: Path, **options: Any) -> LLM:
    """An engine whose pages hold two prompts, and its host memory four blocks."""
    size = {"kv_offloading_size": 4 * BLOCK_BYTES / 2**30, "kv_offloading_disk_size": 0.01}
    files = {"kv_offloading_directory": str(directory), **size}
    return tiny_llm(**{"num_kv_blocks": 9, **files, **options})


def ask(llm: LLM, prompts: Sequence[list[int]] = PROMPTS, **options: Any) -> tuple[Any, list[int]]:
    """The tokens of prompts that come one after the other, and their cached tokens."""
    outputs = []
    for prompt in prompts:
        outputs += llm.generate([prompt], GREEDY, use_tqdm=False, **options)
        for replica in llm._loaded.replicas:
            if replica.runner.transfers is not None:
                replica.runner.transfers.settle()  # more on their way than it allows are lost
    return ids(outputs), [output.num_cached_tokens for output in outputs]


def metric(llm: LLM, name: str) -> float:
    """A metric of the disk."""
    (found,) = (
        each
        for each in llm.get_metrics()
        if each.name == f"jaxinfer:prefix_tier_{name}" and each.labels.get("tier") == "disk"
    )
    assert isinstance(found, Counter | Gauge)
    return found.value


def files_in(directory: Path) -> set[Path]:
    return {path.relative_to(directory) for path in directory.rglob("*.kv")}


@functools.cache
def expected() -> Any:
    """The tokens of an engine without tiers."""
    with tiny_llm() as llm:
        return ask(llm)[0]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of an engine that has ended."""
    directory = tmp_path_factory.mktemp("files")
    with engine(directory) as llm:
        assert ask(llm) == (expected(), [0] * len(PROMPTS))
        assert metric(llm, "hit_blocks") == 0
    return directory


@pytest.fixture
def directory(written: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(written, tmp_path / "files"))


def test_an_engine_that_starts_anew_finds_its_blocks(directory: Path) -> None:
    with engine(directory) as llm:
        assert metric(llm, "blocks") == 3 * len(PROMPTS)
        assert ask(llm) == (expected(), ALL)
        assert metric(llm, "hit_blocks") == 3 * len(PROMPTS)
        assert metric(llm, "lost_blocks") == 0


_ANOTHER_PROCESS = """
import sys
from pathlib import Path
from jaxinfer.serving.prefix_tiers.fetch_policy import FetchPolicy
from tests.serving.prefix_tiers.always_fetching import always_worth
from tests.serving.prefix_tiers.test_files_of_engines import ask, engine
FetchPolicy.is_worth = always_worth
with engine(Path(sys.argv[1])) as llm:
    print(ask(llm))
"""


@pytest.mark.slow
def test_another_process_finds_them(directory: Path) -> None:
    arguments = [sys.executable, "-c", _ANOTHER_PROCESS, str(directory)]
    out = subprocess.run(arguments, capture_output=True, text=True, check=True)
    assert out.stdout == f"{(expected(), ALL)}\n"


_NEVER_CLOSED = """
import contextlib, os, signal, sys, threading
from pathlib import Path
from tests.serving.prefix_tiers.test_files_of_engines import GREEDY, PROMPTS, ask, engine

llm = engine(Path(sys.argv[1]))
ask(llm)
if sys.argv[2] == "streaming":
    stream = llm.stream(PROMPTS[0], GREEDY)
    next(stream)
    sys.exit(3)
def work():
    with contextlib.suppress(Exception):  # the engine is closed meanwhile
        llm.generate(PROMPTS * 1000, GREEDY.clone(max_tokens=12), False)
threading.Thread(target=work, daemon=True).start()
threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
threading.Event().wait()  # or the signal may come to a callback of JAX, which drops the exception
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "status", "last_line"),
    [("streaming", 3, ""), ("interrupted", -signal.SIGINT, "KeyboardInterrupt")],
)
def test_a_program_that_never_closes_its_engine_loses_no_block(
    way: str, status: int, last_line: str, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", _NEVER_CLOSED, str(tmp_path), way]
    out = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert out.returncode == status
    assert out.stderr.count("Traceback") == bool(last_line), out.stderr
    assert "".join(out.stderr.splitlines()[-1:]) == last_line
    with engine(tmp_path) as llm:
        assert ask(llm) == (expected(), ALL)


def test_a_changed_byte_is_computed_again(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for file in directory.rglob("*.kv"):
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
    with caplog.at_level(logging.WARNING, "jaxinfer"), engine(directory) as llm:
        assert ask(llm, PROMPTS[:3]) == (expected()[:3], [0] * 3)
        assert metric(llm, "hit_blocks") == 0
        assert metric(llm, "lost_blocks") > 0
    assert len(caplog.records) == 1


def test_files_that_others_removed_are_computed_again(directory: Path) -> None:
    with engine(directory) as llm:
        shutil.rmtree(directory)
        assert ask(llm, PROMPTS[:3]) == (expected()[:3], [0] * 3)


def test_a_disk_that_fails_changes_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("jaxinfer.serving.prefix_tiers.block_file.os.replace", fail)
    with caplog.at_level(logging.WARNING, "jaxinfer"), engine(tmp_path) as llm:
        assert ask(llm)[0] == expected()
    assert [record.getMessage() for record in caplog.records] == [
        f"no more KV blocks are written to {tmp_path} until the next start, and those in it are "
        "still read: No space left on device"
    ]
    assert not files_in(tmp_path)


def test_blocks_of_new_weights_go_to_no_file(directory: Path) -> None:
    before, new = files_in(directory), tiny_params(seed=7)
    with engine(directory) as llm:
        llm.update_params(new)
        tokens, cached = ask(llm)
        assert cached == [0] * len(PROMPTS)
        assert tokens != expected()
        assert metric(llm, "hit_blocks") == 0
    assert files_in(directory) == before
    with engine(directory, params=new) as llm:
        assert ask(llm) == (tokens, cached)
    names = {path.parts[0] for path in files_in(directory)}
    assert len(names) == 2
    with engine(directory) as llm:
        assert ask(llm) == (expected(), ALL)


def test_a_cache_that_is_reset_finds_nothing_of_before(directory: Path) -> None:
    before = files_in(directory)
    with engine(directory) as llm:
        assert llm.reset_prefix_cache()
        assert ask(llm) == (expected(), [0] * len(PROMPTS))
    assert files_in(directory) == before


@pytest.mark.slow("alone")
def test_an_engine_that_slept_finds_them_still(directory: Path) -> None:
    with engine(directory) as llm:
        llm.sleep()
        llm.wake_up()
        assert ask(llm, PROMPTS[:2]) == (expected()[:2], [48, 48])


def test_a_step_that_failed_leaves_the_files(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with engine(directory) as llm:
        runner = llm._loaded.replicas[0].runner
        launch, failures = runner.launcher.launch, [RuntimeError("the device failed")]

        def failing(*arguments: Any) -> Any:
            if failures:
                raise failures.pop()
            return launch(*arguments)

        monkeypatch.setattr(runner.launcher, "launch", failing)
        assert ask(llm, PROMPTS[-1:])[0] == expected()[-1:]
        assert not failures
        assert ask(llm, PROMPTS[:2]) == (expected()[:2], [48, 48])


def test_blocks_of_adapters_go_to_no_file(tmp_path: Path) -> None:
    adapter = LoRARequest("one", 1, save_peft(tmp_path / "one", tree(matrices(seed=3))))
    directory = tmp_path / "files"
    lora = {"enable_lora": True, "max_loras": 1, "max_lora_rank": 4}
    with engine(directory, **lora) as llm:
        tokens, _ = ask(llm, lora_request=adapter)
        assert tokens != expected()
        assert ask(llm, PROMPTS[-1:], lora_request=adapter) == (tokens[-1:], [48]), "on the device"
    assert not files_in(directory)
    with engine(directory, **lora) as llm:
        ask(llm)
    assert files_in(directory)


def _doubled(layer: Any, residual: Any, state: Any) -> Any:
    return residual * state


def test_blocks_with_an_intervention_go_to_no_file(tmp_path: Path) -> None:
    """Another process may have another state, under the same salt."""
    change = Intervention(_doubled, layers=[0], state=np.float32(2))
    with engine(tmp_path, intervention=change) as llm:
        ask(llm, intervene=True)
    assert not files_in(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [{"tensor_parallel_size": 2}, {"kv_cache_dtype": "int8"}, {"block_size": 8}], ids=str
)
def test_each_layout_has_files_of_its_own(options: dict[str, Any], directory: Path) -> None:
    before = files_in(directory)
    wide = {"num_kv_blocks": 17} if "block_size" in options else {}
    with engine(directory, **options, **wide) as llm:
        tokens, cached = ask(llm)
        assert cached == [0] * len(PROMPTS)
    assert len(files_in(directory)) > len(before)
    with engine(directory, **options, **wide) as llm:
        again, cached = ask(llm, PROMPTS[:2])
        assert again == tokens[:2]
        assert cached == [48, 48]


def test_what_an_engine_holds_at_its_end_is_written_but_for_blocks_in_use(tmp_path: Path) -> None:
    """From the devices and from host memory, where nothing has been evicted."""
    with engine(tmp_path, num_kv_blocks=65) as llm:
        ask(llm, PROMPTS[:2])
        assert metric(llm, "written_blocks") == 0
        stream = llm.stream(PROMPTS[2], GREEDY.clone(max_tokens=10))
        next(stream)
    del stream
    assert len(files_in(tmp_path)) == 6
    with engine(tmp_path, num_kv_blocks=65) as llm:
        assert ask(llm, PROMPTS[:3]) == (expected()[:3], [48, 48, 0])


def test_blocks_that_the_last_launch_evicts_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with engine(tmp_path) as llm:
        ask(llm, PROMPTS[:2])
        launcher, may_launch = llm._loaded.replicas[0].runner.launcher, threading.Event()
        launch = launcher.launch

        def slow(*arguments: Any) -> Any:
            assert may_launch.wait(60)
            return launch(*arguments)

        monkeypatch.setattr(launcher, "launch", slow)
        llm.add_request("last", PROMPTS[2], GREEDY)
        llm.step()
        assert llm._loaded.replicas[0].runner.transfers.num_leaving > 0, "of what is evicted"
        threading.Timer(0.2, may_launch.set).start()
    assert len(files_in(tmp_path)) == 6


def test_devices_that_fail_at_the_end_are_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no device")

    monkeypatch.setattr(BlockRowCopies, "rows", fail)
    with caplog.at_level(logging.WARNING, "jaxinfer"), engine(tmp_path, num_kv_blocks=65) as llm:
        ask(llm, PROMPTS[:2])
    assert caplog.messages == ["KV blocks on the devices were not written to files: no device"]
    assert not files_in(tmp_path)


@pytest.mark.slow
def test_replicas_share_one_capacity(tmp_path: Path) -> None:
    limit = {"kv_offloading_disk_size": 6 * file_bytes(BLOCK_BYTES) / 2**30}
    with engine(tmp_path, data_parallel_size=2, **limit) as llm:
        outputs = llm.generate(PROMPTS * 2, GREEDY, use_tqdm=False)
        assert ids(outputs) == expected() * 2
        assert metric(llm, "capacity_blocks") == 6
    assert 0 < len(files_in(tmp_path)) <= 6


def test_blocks_that_may_hold_nan_leave_the_files_too(tmp_path: Path) -> None:
    files = FileTier(tmp_path, "0" * 64, 4, 1 << 20)
    tier = HostTier(1, FileWriter(files))
    one, two = b"1" * 32, b"2" * 32
    tier.put(one, BlockRow([b"nan!"], 0))
    tier.put(two, BlockRow([b"fine"], 0))
    tier.forget([one, two])
    assert one not in tier
    assert two not in tier
    tier.close()
    assert not files_in(tmp_path)


def test_a_directory_that_can_not_be_used_is_refused_before_anything_is_read(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"kv_offloading_directory .*/file is a file; name a dir"):
        engine(tmp_path / "file", params=None, config=None, model="no such model")
    with pytest.raises(CapacityError, match="kv_offloading_disk_size is 1e"):
        engine(tmp_path, kv_offloading_disk_size=1e8)


def test_a_directory_that_others_may_write_to_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = EngineConfig(
        kv_offloading_size=1, kv_offloading_directory=str(tmp_path), kv_offloading_disk_size=1
    )
    tmp_path.chmod(0o777)
    with pytest.raises(ValueError, match=r"others may write to it \(mode 0777\); `chmod go-w` it"):
        SharedFiles(config)
    tmp_path.chmod(0o700)
    owner = tmp_path.stat().st_uid or 4242  # root's directories are trusted
    if tmp_path.stat().st_uid == 0:
        os.chown(tmp_path, owner, -1)
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(ValueError, match=rf"belongs to another user \({owner}\); give a directory"):
        SharedFiles(config)
