"""Runs a command and ends its process: one line for an error, no traceback for Ctrl-C."""

import contextlib
import io
import os
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

from jaxinfer.cli.interrupts import lost_interrupts_come_again

OK = 0
FAILED = 1
USAGE = 2
INTERRUPTED = 130  # 128 + SIGINT, as shells report it
PIPE_CLOSED = 141  # 128 + SIGPIPE

# Phrases for a full disk, from the system, TensorStore and others. They are looked for first:
# TensorStore reports a full disk as RESOURCE_EXHAUSTED.
_DISK_FULL = ("No space left on device", "Disk quota exceeded")

# Phrases for exhausted memory, from XLA, NCCL and the allocators.
_OUT_OF_MEMORY = ("RESOURCE_EXHAUSTED", "out of memory", "Out of memory", "OUT_OF_MEMORY")


_MEMORY_ADVICE = (
    "lower --gpu-memory-utilization, --max-model-len or --max-num-seqs, or take a smaller --dtype"
)


def run_command(name: str, body: Callable[[], int], *, memory_advice: str = _MEMORY_ADVICE) -> int:
    """Run a command's body and turn its exceptions into one line and an exit status.

    Args:
        name: of the command.
        body: returns its status.
        memory_advice: what to do where memory runs out.

    Returns:
        The body's status; 1 after a user's error (one line on stderr), 130 after Ctrl-C, 141 when
        the reader of stdout went away. Other errors are bugs and propagate with their
        traceback, which a bug report needs.
    """
    _open_standard_streams()
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115  # print would take stdout instead
    if sys.stdout is None:
        print_error(name, "standard output is closed; give it a file or a pipe")
        return FAILED
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal that can't show a character must not end the command.
        sys.stdout.reconfigure(errors="replace")
    try:
        with lost_interrupts_come_again():
            status = body()
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _discard_stdout()
        return PIPE_CLOSED
    except MemoryError:
        print_error(name, f"out of host memory; {memory_advice}")
        return FAILED
    except (ValueError, OSError, ImportError, RuntimeError) as error:
        message = user_message(error, memory_advice)
        if message is None:
            raise
        print_error(name, message)
        if isinstance(error, OSError):
            _discard_unwritable_stdout()
        return FAILED


def _open_standard_streams() -> None:
    """Open the null device in the place of standard streams that are closed.

    A socket would get the number of one, and child processes would have it as that stream.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number, and those before are open


def user_message(error: Exception, memory_advice: str = _MEMORY_ADVICE) -> str | None:
    """The one-line message for a user's error, or None if the error is a bug.

    The library reports a user's mistake as a ValueError, an OSError or one of
    `jaxinfer.errors`. A RuntimeError from elsewhere is theirs only when memory ran out. A
    TypeError can't come from a command line: the flags are typed.
    """
    from jaxinfer.errors import JaxinferError

    text = " ".join(str(error).split())
    if any(words in text for words in _DISK_FULL):
        return f"no space left on the disk ({_shorten(text)})"
    if "os_error_code" in text:  # TensorStore, about a file
        return _shorten(text)
    if any(words in text for words in _OUT_OF_MEMORY):
        return f"out of device memory; {memory_advice} ({_shorten(text)})"
    if isinstance(error, JaxinferError | ValueError):
        return text or type(error).__name__
    if isinstance(error, OSError):
        named = error.filename is not None and error.strerror
        return _shorten(f"{error.filename}: {error.strerror}" if named else text)
    if isinstance(error, ImportError) and not (error.name or "").startswith("jaxinfer"):
        return f"{text}; install what is missing (the extras are listed in the README)"
    return None


def print_error(name: str, message: str) -> None:
    """Write `jaxinfer NAME: error: MESSAGE` as one line on stderr."""
    print(f"jaxinfer {name}: error: {message}", file=sys.stderr, flush=True)


def end_process(status: int) -> NoReturn:
    """End the process with `status`; after Ctrl-C at once, without waiting for worker threads.

    XLA's compilation can't be cancelled, so an ordinary exit would wait for the programs that are
    still compiling, and a second Ctrl-C in that time would print a traceback.
    """
    if status == INTERRUPTED:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):
                stream.flush()
        _part_from_other_processes()
        os._exit(status)
    sys.exit(status)


def end_at_the_next_interrupt() -> None:
    """Make the next Ctrl-C end the process wherever it comes.

    As an exception it could come between two statements, and closing the engine would then wait
    for the step after all.
    """
    signal.signal(signal.SIGINT, lambda *_: end_process(INTERRUPTED))


def _part_from_other_processes() -> None:
    """Give the other processes of an engine, if any, time to shut down cleanly too."""
    if "jaxinfer.serving.processes.start" in sys.modules:
        from jaxinfer.serving.processes.start import part_from_others

        part_from_others()


def _discard_stdout() -> None:
    """Point stdout at the null device, so that the flush at exit does not fail again."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


def _discard_unwritable_stdout() -> None:
    """Discard stdout if it can't be written, for example on a full disk."""
    try:
        sys.stdout.flush()
    except OSError:
        _discard_stdout()


def _shorten(text: str, limit: int = 300) -> str:
    """The text, or its two ends: messages begin with the action and end with the cause."""
    half = limit // 2
    return text if len(text) <= limit else f"{text[: half - 3]} ... {text[2 - half :]}"
