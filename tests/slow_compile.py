"""Runs a command whose programs take minutes to compile: ``-m tests.slow_compile generate``.

A second Ctrl-C comes at the worst moment: while the command says that it would be heard.
"""

import io
import signal
import sys
import time
from typing import Any

from jaxinfer.__main__ import main as jaxinfer
from jaxinfer.serving.compile.compilation import CompiledPrograms

MINUTES_S = 300


class _Impatient(io.TextIOWrapper):
    """A stderr whose reader presses Ctrl-C as soon as it is offered."""

    def write(self, text: str) -> int:
        count = super().write(text)
        if "Ctrl-C again" in text:
            self.flush()
            signal.raise_signal(signal.SIGINT)
        return count


def main() -> None:
    """Run the command line with a compiler that sleeps first."""
    compile_ = CompiledPrograms.compile

    def compile_slowly(self: Any, *args: Any, **kwargs: Any) -> Any:
        time.sleep(MINUTES_S)
        return compile_(self, *args, **kwargs)

    CompiledPrograms.compile = compile_slowly
    sys.stderr = _Impatient(sys.stderr.detach(), line_buffering=True)
    jaxinfer()


if __name__ == "__main__":
    main()
