"""Progress bars: what they show, and that work goes on where they can't be written."""

import gc
import io
import os
import sys
import threading

import pytest
from tqdm import tqdm

from jaxinfer.progress import ProgressBar

pytestmark = pytest.mark.usefixtures("small_heap")


class _Failing(io.StringIO):
    def __init__(self, error, good_writes=0):
        super().__init__()
        self.error = error
        self.good_writes = good_writes

    def write(self, text):
        self.good_writes -= 1
        if self.good_writes < 0:
            raise self.error
        return super().write(text)


def _work():
    done = []
    with ProgressBar(3, "Working", enabled=True) as bar:
        for i in range(3):
            bar.set_postfix(f"{i} things")
            # Each update is shown at once.
            if bar._bar is not None:
                bar._bar.mininterval = 0
            bar.update()
            done.append(i)
    gc.collect()  # a bar that was given up must not write when it is collected
    return done


def _closed_pipe():
    read, write = os.pipe()
    os.close(read)
    return os.fdopen(write, "w", buffering=1)


def test_a_bar_shows_what_is_done(capsys):
    assert _work() == [0, 1, 2]
    shown = capsys.readouterr().err
    assert "Working: 100%" in shown
    assert "2 things" in shown


def test_a_disabled_bar_shows_nothing_and_tells_the_time(capsys):
    with ProgressBar(3, "Working", enabled=False) as bar:
        bar.update()
        bar.advance_to(2, 3)
        bar.set_postfix("text")
        first = bar.elapsed
        assert 0 < first < bar.elapsed
    assert not capsys.readouterr().err


def test_work_that_fails_before_its_size_is_known_shows_no_bar(capsys):
    with (
        pytest.raises(OSError, match="no file"),
        ProgressBar(None, "Reading", enabled=True, unit="B", unit_scale=True),
    ):
        raise OSError("no file")
    assert not capsys.readouterr().err


def test_work_of_unknown_size_says_how_much_it_is(capsys):
    with ProgressBar(None, "Reading", enabled=True, unit="B", unit_scale=True) as bar:
        bar.advance_to(2_000, 8_000)
        bar.advance_to(8_000, 8_000)
    assert "Reading: 100%" in (shown := capsys.readouterr().err)
    assert "8.00k/8.00k" in shown


@pytest.mark.parametrize("good_writes", range(8))
@pytest.mark.parametrize(
    "error",
    [
        BrokenPipeError(32, "Broken pipe"),
        ValueError("I/O operation on closed file."),
        OSError(28, "No space left on device"),
        RuntimeError("this stderr raises what it likes"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_work_goes_on_when_the_stream_fails_at_any_moment(monkeypatch, error, good_writes):
    monkeypatch.setattr(sys, "stderr", _Failing(error, good_writes))
    assert _work() == [0, 1, 2]


def test_work_goes_on_when_the_reader_of_a_pipe_is_gone(monkeypatch):
    pipe = _closed_pipe()
    monkeypatch.setattr(sys, "stderr", pipe)
    assert _work() == [0, 1, 2]
    with pytest.raises(BrokenPipeError):
        pipe.close()  # what the bar wrote is still there


def test_work_goes_on_when_stderr_is_closed(monkeypatch):
    stream = io.StringIO()
    stream.close()
    monkeypatch.setattr(sys, "stderr", stream)
    assert _work() == [0, 1, 2]


def test_a_bar_that_failed_does_not_hold_up_bars_of_other_threads(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", _Failing(BrokenPipeError()))
        _work()
    other = threading.Thread(target=lambda: tqdm(total=1, file=io.StringIO()).close(), daemon=True)
    other.start()
    other.join(10)
    assert not other.is_alive()


def test_an_error_of_the_work_itself_passes_through():
    with pytest.raises(KeyError), ProgressBar(3, "Working", enabled=True):
        raise KeyError("work")
