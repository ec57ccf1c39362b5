"""Runs a command whose programs take minutes to compile: ``-m tests.slow_compile generate``."""

import time
from typing import Any

from jaxinfer.__main__ import main as jaxinfer
from jaxinfer.serving.compilation import CompiledPrograms

MINUTES_S = 300


def main() -> None:
    """Run the command line with a compiler that sleeps first."""
    compile_ = CompiledPrograms.compile

    def compile_slowly(self: Any, *args: Any, **kwargs: Any) -> Any:
        time.sleep(MINUTES_S)
        return compile_(self, *args, **kwargs)

    CompiledPrograms.compile = compile_slowly
    jaxinfer()


if __name__ == "__main__":
    main()
