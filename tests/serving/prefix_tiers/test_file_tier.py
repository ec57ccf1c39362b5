"""KV blocks in files: found again, bounded, and never wrong."""

import errno
import hashlib
import logging
import os
import signal
import stat
import subprocess
import sys
import tempfile
import threading
from collections import OrderedDict
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from jaxinfer.errors import CapacityError
from jaxinfer.serving.prefix_tiers import block_file, tier_directory
from jaxinfer.serving.prefix_tiers.block_file import file_bytes
from jaxinfer.serving.prefix_tiers.file_tier import FileTier, FileTierCounts

FINGERPRINT = hashlib.sha256(b"weights").hexdigest()
OTHER = hashlib.sha256(b"other weights").hexdigest()
BLOCK_BYTES = 1000
FILE_BYTES = file_bytes(BLOCK_BYTES)


def key_of(number: int) -> bytes:
    return hashlib.sha256(b"%d" % number).digest()


def data_of(number: int) -> bytes:
    return hashlib.shake_256(b"%d" % number).digest(BLOCK_BYTES)


def open_tier(directory: Path, blocks: int = 10, fingerprint: str = FINGERPRINT) -> FileTier:
    return FileTier(directory, fingerprint, BLOCK_BYTES, blocks * FILE_BYTES)


def path_of(directory: Path, number: int, fingerprint: str = FINGERPRINT) -> Path:
    key = key_of(number).hex()
    return directory / fingerprint / key[:2] / f"{key}.kv"


def files_in(directory: Path) -> set[Path]:
    return {path for path in directory.rglob("*") if path.is_file()}


def change_byte(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def test_a_block_is_found_again_and_after_a_restart(tmp_path: Path) -> None:
    tier = open_tier(tmp_path)
    assert key_of(1) not in tier
    assert tier.read(key_of(1)) is None

    tier.write(key_of(1), data_of(1))

    assert key_of(1) in tier
    assert tier.read(key_of(1)) == data_of(1)
    assert (tier.num_blocks, tier.num_bytes) == (1, FILE_BYTES)
    again = open_tier(tmp_path)
    assert key_of(1) in again
    assert again.read(key_of(1)) == data_of(1)
    assert again.counts == FileTierCounts(read=1)


def test_the_layout_on_disk(tmp_path: Path) -> None:
    open_tier(tmp_path / "made").write(key_of(1), data_of(1))
    assert files_in(tmp_path) == {path_of(tmp_path / "made", 1)}
    assert path_of(tmp_path / "made", 1).stat().st_size == FILE_BYTES
    assert stat.S_IMODE(path_of(tmp_path / "made", 1).stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "made").stat().st_mode) == 0o700


def test_any_contiguous_buffer_is_written(tmp_path: Path) -> None:
    import numpy as np

    tier = open_tier(tmp_path)
    tier.write(key_of(1), np.frombuffer(data_of(1), np.uint8).reshape(10, 100))
    assert tier.read(key_of(1)) == data_of(1)


def test_a_block_of_another_size_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a block has 1000 bytes and a key of 32, got 999 and 32"):
        open_tier(tmp_path).write(key_of(1), data_of(1)[1:])
    with pytest.raises(ValueError, match="64 digits, got 'abcd'"):
        FileTier(tmp_path, "abcd", BLOCK_BYTES, 10 * FILE_BYTES)


def test_the_least_recently_used_blocks_go(tmp_path: Path) -> None:
    tier = open_tier(tmp_path, blocks=3)
    for number in (1, 2, 3):
        tier.write(key_of(number), data_of(number))
    tier.read(key_of(1))
    tier.write(key_of(2), data_of(2))  # kept already: used, not written
    tier.write(key_of(4), data_of(4))
    assert [key_of(number) in tier for number in (1, 2, 3, 4)] == [True, True, False, True]
    assert files_in(tmp_path) == {path_of(tmp_path, number) for number in (1, 2, 4)}
    assert tier.counts == FileTierCounts(written=4, read=1, evicted=1)


def test_a_restart_keeps_the_order_of_use_and_shrinks_to_its_capacity(tmp_path: Path) -> None:
    tier = open_tier(tmp_path)
    for number in (1, 2, 3):
        tier.write(key_of(number), data_of(number))
        os.utime(path_of(tmp_path, number), ns=(number, number))
    tier.read(key_of(1))

    again = open_tier(tmp_path, blocks=2)

    assert [key_of(number) in again for number in (1, 2, 3)] == [True, False, True]
    assert files_in(tmp_path) == {path_of(tmp_path, number) for number in (1, 3)}


def test_files_of_other_weights_never_hit_and_go_in_time(tmp_path: Path) -> None:
    old = open_tier(tmp_path, blocks=2, fingerprint=OTHER)
    old.write(key_of(1), data_of(1))
    old.write(key_of(2), data_of(2))

    tier = open_tier(tmp_path, blocks=2)
    assert key_of(1) not in tier
    assert tier.read(key_of(1)) is None
    assert (tier.num_blocks, tier.num_bytes) == (0, 2 * FILE_BYTES)
    tier.write(key_of(1), b"n" * BLOCK_BYTES)
    assert tier.read(key_of(1)) == b"n" * BLOCK_BYTES
    tier.write(key_of(3), data_of(3))
    assert files_in(tmp_path) == {path_of(tmp_path, number) for number in (1, 3)}
    assert old.read(key_of(1)) is None
    assert old.counts.lost == 1


@pytest.mark.parametrize("place", [0, 9, 20, 50, 80, 86, 90, 500, FILE_BYTES - 1])
def test_one_changed_byte_is_a_miss_counted_and_removed(
    tmp_path: Path, place: int, caplog: pytest.LogCaptureFixture
) -> None:
    tier = open_tier(tmp_path)
    for number in (1, 2, 3):
        tier.write(key_of(number), data_of(number))
    change_byte(path_of(tmp_path, 1), place)
    change_byte(path_of(tmp_path, 2), place)

    with caplog.at_level(logging.WARNING, "jaxinfer"):
        assert tier.read(key_of(1)) is None
        assert tier.read(key_of(2)) is None

    assert len(caplog.records) == 1
    assert "is computed again" in caplog.text
    assert tier.counts == FileTierCounts(written=3, damaged=2)
    assert key_of(1) not in tier
    assert files_in(tmp_path) == {path_of(tmp_path, 3)}
    tier.write(key_of(1), data_of(1))
    assert tier.read(key_of(1)) == data_of(1)


def test_a_file_under_another_blocks_name_is_a_miss(tmp_path: Path) -> None:
    tier = open_tier(tmp_path)
    tier.write(key_of(1), data_of(1))
    tier.write(key_of(2), data_of(2))
    path_of(tmp_path, 1).replace(path_of(tmp_path, 2))
    assert tier.read(key_of(2)) is None
    old = path_of(tmp_path, 3, OTHER)
    old.parent.mkdir(parents=True)
    tier.write(key_of(3), data_of(3))
    path_of(tmp_path, 3).replace(old)
    assert open_tier(tmp_path, fingerprint=OTHER).read(key_of(3)) is None


def test_a_file_of_another_format_version_is_a_miss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_tier(tmp_path).write(key_of(1), data_of(1))
    monkeypatch.setattr(block_file, "FORMAT_VERSION", 2)
    assert open_tier(tmp_path).read(key_of(1)) is None


def test_a_cut_file_is_removed_at_start_and_a_miss_later(tmp_path: Path) -> None:
    tier = open_tier(tmp_path)
    tier.write(key_of(1), data_of(1))
    tier.write(key_of(2), data_of(2))
    for number in (1, 2):
        os.truncate(path_of(tmp_path, number), FILE_BYTES - 1)
    assert tier.read(key_of(1)) is None
    assert tier.counts.damaged == 1
    assert key_of(2) not in open_tier(tmp_path)
    assert not files_in(tmp_path)


def test_what_is_not_the_tiers_is_left_alone(tmp_path: Path) -> None:
    mine = [tmp_path / "notes.txt", tmp_path / FINGERPRINT / "ab" / "notes.txt", tmp_path / "x.kv"]
    for path in mine:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
    tier = open_tier(tmp_path, blocks=1)
    for number in (1, 2):
        tier.write(key_of(number), data_of(number))
    assert files_in(tmp_path) == {*mine, path_of(tmp_path, 2)}


def test_two_stores_in_one_directory_do_not_harm_each_other(tmp_path: Path) -> None:
    first, second = open_tier(tmp_path, blocks=2), open_tier(tmp_path, blocks=2)
    first.write(key_of(1), data_of(1))
    second.write(key_of(1), data_of(1))
    second.write(key_of(2), data_of(2))
    second.write(key_of(3), data_of(3))  # removes 1, which the first still lists
    assert key_of(1) in first
    assert first.read(key_of(1)) is None
    assert first.counts == FileTierCounts(written=1, lost=1)
    first.write(key_of(1), data_of(1))
    assert first.read(key_of(1)) == data_of(1)
    assert second.read(key_of(3)) == data_of(3)


def test_threads_of_two_stores_read_whole_blocks_or_none(tmp_path: Path) -> None:
    tiers = [open_tier(tmp_path, blocks=4), open_tier(tmp_path, blocks=4)]
    wrong = []

    def work(tier: FileTier, start: int) -> None:
        for step in range(150):
            number = (start + step * 7) % 8
            tier.write(key_of(number), data_of(number))
            if tier.read(key_of(step % 8)) not in (None, data_of(step % 8)):
                wrong.append(step % 8)

    threads = [threading.Thread(target=work, args=(tiers[i % 2], i)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert all(tier.num_bytes <= 4 * FILE_BYTES and tier.is_writable for tier in tiers)
    assert all(tier.counts.damaged == 0 for tier in tiers)
    assert all(tier.num_bytes == tier.num_blocks * FILE_BYTES for tier in tiers)


_WRITER = """
import os, sys
from pathlib import Path
from jaxinfer.serving.prefix_tiers import block_file
from jaxinfer.serving.prefix_tiers.file_tier import FileTier

def stop(*paths):
    print("halfway", flush=True)
    sys.stdin.read()

os.replace = stop
directory, fingerprint, size = sys.argv[1:]
tier = FileTier(directory, fingerprint, int(size), 10 * block_file.file_bytes(int(size)))
tier.write(b"k" * 32, b"d" * int(size))
"""


def test_a_killed_writer_leaves_nothing(tmp_path: Path) -> None:
    arguments = [sys.executable, "-c", _WRITER, str(tmp_path), FINGERPRINT, str(BLOCK_BYTES)]
    pipe = subprocess.PIPE
    with subprocess.Popen(arguments, stdin=pipe, stdout=pipe, text=True) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "halfway\n"
        (temporary,) = files_in(tmp_path)
        assert b"k" * 32 not in open_tier(tmp_path)
        assert temporary.exists(), "its writer lives"
        writer.send_signal(signal.SIGKILL)
    assert b"k" * 32 not in open_tier(tmp_path)
    assert not files_in(tmp_path)


def failing(code: int) -> OSError:
    return OSError(code, os.strerror(code))


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EROFS])
def test_a_disk_that_fails_ends_the_writing_with_one_warning(
    tmp_path: Path, code: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tier = open_tier(tmp_path)
    tier.write(key_of(1), data_of(1))

    def fail(*_: object) -> None:
        raise failing(code)

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "jaxinfer"):
        patch.setattr(block_file.os, "replace", fail)
        for number in (2, 3):
            tier.write(key_of(number), data_of(number))

    assert [record.getMessage() for record in caplog.records] == [
        f"no more KV blocks are written to {tmp_path} until the next start, and those in it are "
        f"still read: {os.strerror(code)}"
    ]
    assert not tier.is_writable
    assert files_in(tmp_path) == {path_of(tmp_path, 1)}
    assert tier.read(key_of(1)) == data_of(1)
    assert key_of(2) not in tier
    tier.write(key_of(2), data_of(2))
    assert key_of(2) not in tier


def test_a_temporary_that_another_engine_removed_is_one_lost_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = open_tier(tmp_path)

    def fail(*_: object) -> None:
        raise failing(errno.ENOENT)

    with monkeypatch.context() as patch:
        patch.setattr(block_file.os, "replace", fail)
        tier.write(key_of(1), data_of(1))
    assert tier.is_writable
    assert key_of(1) not in tier
    tier.write(key_of(1), data_of(1))
    assert tier.read(key_of(1)) == data_of(1)


@pytest.mark.parametrize("path", ["x" * 300, "~no-such-user/blocks", "a\0b"])
def test_a_path_that_is_none_is_refused_in_one_line(tmp_path: Path, path: str) -> None:
    with pytest.raises(
        ValueError, match=r"kv_offloading_directory .* can't be written to \(.*own$"
    ):
        tier_directory.make_directory(path if path.startswith("~") else str(tmp_path / path))


def test_a_full_disk_ends_the_writing(tmp_path: Path) -> None:
    """A limit on file sizes makes the kernel itself refuse."""
    script = (
        "import resource, signal, sys\n"
        "from jaxinfer.serving.prefix_tiers.file_tier import FileTier\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (500, 500))\n"
        "tier = FileTier(sys.argv[1], sys.argv[2], 1000, 1 << 20)\n"
        "tier.write(b'k' * 32, b'd' * 1000)\n"
        "print(tier.is_writable, b'k' * 32 in tier)\n"
    )
    arguments = [sys.executable, "-c", script, str(tmp_path), FINGERPRINT]
    out = subprocess.run(arguments, capture_output=True, text=True, check=True)
    assert out.stdout == "False False\n"
    assert not files_in(tmp_path)


def test_a_disk_that_does_not_read_is_a_miss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tier = open_tier(tmp_path)
    tier.write(key_of(1), data_of(1))

    def fail(*_: object) -> bytes:
        raise failing(errno.EIO)

    monkeypatch.setattr("jaxinfer.serving.prefix_tiers.file_tier.read_block", fail)
    with caplog.at_level(logging.WARNING, "jaxinfer"):
        assert tier.read(key_of(1)) is None
    assert len(caplog.records) == 1
    assert tier.counts.lost == 1


def test_a_directory_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"kv_offloading_directory .*/file is a file; name a dir"):
        open_tier(tmp_path / "file")
    with pytest.raises(ValueError, match=r"file/in it can't be written to \(Not a directory\);"):
        open_tier(tmp_path / "file" / "in it")


def test_a_directory_that_is_not_writable_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(**_: object) -> None:
        raise failing(errno.EACCES)

    monkeypatch.setattr(tier_directory.tempfile, "TemporaryFile", fail)
    with pytest.raises(ValueError, match=r"can't be written to \(Permission denied\); name a dire"):
        open_tier(tmp_path)


def test_a_capacity_without_room_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CapacityError, match=r"less than a KV block's file of .*; raise it, or"):
        FileTier(tmp_path, FINGERPRINT, BLOCK_BYTES, FILE_BYTES - 1)
    with pytest.raises(CapacityError, match=r"GiB free beside 0 GiB of blocks; lower it, or name"):
        FileTier(tmp_path, FINGERPRINT, BLOCK_BYTES, 1 << 60)


def test_blocks_on_a_full_disk_count_as_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = open_tier(tmp_path, blocks=2)
    for number in (1, 2):
        tier.write(key_of(number), data_of(number))
    full = tier_directory.shutil.disk_usage(tmp_path)._replace(free=0)
    monkeypatch.setattr(tier_directory.shutil, "disk_usage", lambda _: full)
    assert open_tier(tmp_path, blocks=2).num_blocks == 2
    with pytest.raises(CapacityError):
        open_tier(tmp_path, blocks=3)


class Store(RuleBasedStateMachine):
    """A store against a dictionary, through evictions, damage, other processes and restarts."""

    capacity = 4
    numbers = st.integers(0, 7)

    @initialize()
    def start(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.directory = Path(self.folder.name)
        self.model: OrderedDict[int, bool] = OrderedDict()  # by use; whether the file is whole
        self.clock = 0
        self.tier = open_tier(self.directory, self.capacity)

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.folder.cleanup()

    def _use(self, number: int) -> None:
        self.model.move_to_end(number)
        self.clock += 1

    @rule(number=numbers)
    def write(self, number: int) -> None:
        self.tier.write(key_of(number), data_of(number))
        if number not in self.model:
            if len(self.model) == self.capacity:
                self.model.popitem(last=False)
            self.model[number] = True
        self._use(number)

    @rule(number=numbers)
    def read(self, number: int) -> None:
        whole = self.model.get(number, False)
        assert self.tier.read(key_of(number)) == (data_of(number) if whole else None)
        if whole:
            self._use(number)
        else:
            self.model.pop(number, None)

    @rule(number=numbers, place=st.integers(0, FILE_BYTES - 1))
    def damage(self, number: int, place: int) -> None:
        if self.model.get(number):
            change_byte(path_of(self.directory, number), place)
            self.model[number] = False

    @rule(number=numbers)
    def remove_from_outside(self, number: int) -> None:
        if self.model.get(number):
            path_of(self.directory, number).unlink()
            self.model[number] = False

    @rule(number=numbers)
    def forget(self, number: int) -> None:
        self.tier.forget([key_of(number)])
        assert key_of(number) not in self.tier
        self.tier.remove_forgotten()
        self.model.pop(number, None)

    @rule()
    def restart(self) -> None:
        present = [n for n in self.model if path_of(self.directory, n).exists()]
        for place, number in enumerate(present):  # the clock of a file system is coarse
            os.utime(path_of(self.directory, number), ns=(place, place))
        self.model = OrderedDict((number, self.model[number]) for number in present)
        self.tier = open_tier(self.directory, self.capacity)

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "tier"):
            return
        assert {n for n in range(8) if key_of(n) in self.tier} == set(self.model)
        assert self.tier.num_blocks == len(self.model)
        assert self.tier.num_bytes == len(self.model) * FILE_BYTES
        assert files_in(self.directory) <= {path_of(self.directory, n) for n in self.model}


TestStore = Store.TestCase
TestStore.settings = settings(
    max_examples=40,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
