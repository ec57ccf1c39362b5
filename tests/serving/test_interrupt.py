"""Ctrl-C waits for the end of a step, a second one does not."""

import signal
import threading

import pytest

from jaxinfer.serving.interrupt import InterruptBetweenSteps


def press():
    signal.raise_signal(signal.SIGINT)


def test_an_interrupt_waits_for_the_check():
    with InterruptBetweenSteps() as interrupt:
        press()
        with pytest.raises(KeyboardInterrupt):
            interrupt.check()
        interrupt.check()


def test_an_interrupt_comes_at_the_latest_at_the_end():
    with pytest.raises(KeyboardInterrupt), InterruptBetweenSteps():
        press()


def test_a_second_interrupt_is_not_held_back():
    with InterruptBetweenSteps():
        press()
        with pytest.raises(KeyboardInterrupt):
            press()


def test_the_handler_before_gets_the_signal_and_comes_back():
    heard = []
    before = signal.signal(signal.SIGINT, lambda number, frame: heard.append(number))
    try:
        with InterruptBetweenSteps() as interrupt:
            press()
            assert heard == []
            interrupt.check()
            assert heard == [signal.SIGINT]
        press()
        assert heard == [signal.SIGINT] * 2
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_ignored_interrupt_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with InterruptBetweenSteps():
            press()
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_do_nothing():
    errors = []

    def run():
        try:
            with InterruptBetweenSteps() as interrupt:
                interrupt.check()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert errors == []
