"""Files behind host memory: written beside the engine, and forgotten at once."""

import threading
from pathlib import Path

import pytest

from jaxinfer.serving.prefix_tiers import file_writer
from jaxinfer.serving.prefix_tiers.block_file import file_bytes
from jaxinfer.serving.prefix_tiers.file_tier import FileTier
from jaxinfer.serving.prefix_tiers.file_writer import FileWriter
from tests.serving.prefix_tiers.test_file_tier import (
    BLOCK_BYTES,
    data_of,
    files_in,
    key_of,
    open_tier,
    path_of,
)


class SlowDisk:
    """Holds up the writes of a store until it is told to let them go."""

    def __init__(self, files: FileTier, monkeypatch: pytest.MonkeyPatch) -> None:
        self.has_begun, self.goes_on = threading.Event(), threading.Event()
        write = files.write

        def slow(key: bytes, data: bytes) -> None:
            self.has_begun.set()
            assert self.goes_on.wait(60)
            write(key, data)

        monkeypatch.setattr(files, "write", slow)


def test_nobody_waits_for_a_write_and_a_waiting_block_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = open_tier(tmp_path)
    disk, writer = SlowDisk(files, monkeypatch), FileWriter(files)
    writer.write(key_of(1), memoryview(data_of(1)))
    assert key_of(1) in writer
    assert writer.read(key_of(1)) == data_of(1)
    assert not files_in(tmp_path)
    disk.goes_on.set()
    writer.close()
    assert files_in(tmp_path) == {path_of(tmp_path, 1)}
    assert writer.read(key_of(1)) == data_of(1)


def test_a_disk_that_is_too_slow_loses_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_writer, "MOST_WAITING_BYTES", 2 * BLOCK_BYTES)
    files = open_tier(tmp_path)
    disk, writer = SlowDisk(files, monkeypatch), FileWriter(files)
    for number in (1, 2, 3):
        if writer.wants(key_of(number)):
            writer.write(key_of(number), data_of(number))
    assert [key_of(number) in writer for number in (1, 2, 3)] == [True, True, False]
    assert writer.num_dropped == 1
    disk.goes_on.set()
    writer.close()
    assert files.num_blocks == 2


def test_a_block_is_forgotten_at_once_whether_it_waits_is_written_or_has_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = open_tier(tmp_path)
    files.write(key_of(1), data_of(1))
    disk, writer = SlowDisk(files, monkeypatch), FileWriter(files)
    writer.write(key_of(2), data_of(2))
    assert disk.has_begun.wait(60)
    writer.write(key_of(3), data_of(3))
    writer.write(key_of(4), data_of(4))

    writer.forget(key_of(number) for number in (1, 2, 3))

    assert [key_of(number) in writer for number in (1, 2, 3, 4)] == [False, False, False, True]
    assert [writer.read(key_of(number)) for number in (1, 2, 3)] == [None] * 3
    disk.goes_on.set()
    writer.close()
    assert files_in(tmp_path) == {path_of(tmp_path, 4)}
    assert files.num_bytes == file_bytes(BLOCK_BYTES)


def test_a_block_that_is_forgotten_and_computed_anew_while_it_is_written_is_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = open_tier(tmp_path)
    disk, writer = SlowDisk(files, monkeypatch), FileWriter(files)
    writer.write(key_of(1), data_of(1))
    assert disk.has_begun.wait(60)
    writer.forget([key_of(1)])
    writer.write(key_of(1), data_of(2))
    disk.goes_on.set()
    writer.close()
    assert files.read(key_of(1)) == data_of(2)


def test_keys_of_this_process_alone_are_not_written(tmp_path: Path) -> None:
    files = open_tier(tmp_path)
    writer = FileWriter(files)
    assert not writer.wants(b"-" + key_of(1))
    assert writer.read(b"-" + key_of(1)) is None
    writer.close([(b"-" + key_of(1), data_of(1))])
    assert not files_in(tmp_path)


def test_what_leaves_at_the_end_is_written_the_most_valuable_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = FileWriter(open_tier(tmp_path))
    writer.close((key_of(number), data_of(number)) for number in (1, 2))
    assert files_in(tmp_path) == {path_of(tmp_path, number) for number in (1, 2)}

    times = iter([0.0, 1.0, 2.0, 11.0])
    monkeypatch.setattr(file_writer.time, "monotonic", lambda: next(times))
    FileWriter(open_tier(tmp_path)).close((key_of(n), data_of(n)) for n in (3, 4, 5))
    assert files_in(tmp_path) == {path_of(tmp_path, number) for number in (1, 2, 3, 4)}


def test_a_block_that_has_a_file_is_not_wanted_and_its_file_stays_longer(tmp_path: Path) -> None:
    files = open_tier(tmp_path, blocks=2)
    for number in (1, 2):
        files.write(key_of(number), data_of(number))
    writer = FileWriter(files)
    assert not writer.wants(key_of(1))
    files.write(key_of(3), data_of(3))
    assert [key_of(number) in files for number in (1, 2, 3)] == [True, False, True]


def test_a_failed_disk_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = open_tier(tmp_path)
    monkeypatch.setattr(files, "_is_writable", False)
    writer = FileWriter(files)
    assert not writer.wants(key_of(1))
    writer.close([(key_of(1), data_of(1))])
    assert not files_in(tmp_path)
