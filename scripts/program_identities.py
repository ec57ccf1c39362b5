"""Identities of the programs that a plain engine launches on an H200: the same before and after?

A change that isn't meant to touch them leaves them as they are, and this shows it without a GPU, in
an environment of scripts/h200_compile.py:

    .venv-h200-newest/bin/python -m scripts.program_identities > before
    .venv-h200-newest/bin/python -m scripts.program_identities --against before

An identity is a hash of a program's StableHLO and of the Mosaic modules in it, but not of the lines
of Python that they come from. Programs are those of `STEPS` in
tests/serving/programs/test_h200_steps.py, with two layers. Status 1 where one differs.
"""

import argparse
import dataclasses
import hashlib
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from jax._src.interpreters import mlir
from jax._src.lib import mosaic_gpu_dialect
from jax._src.lib.mlir import ir

_MODULE = re.compile(r'kernel_hash = "(?:[^"\\]|\\.)*", module = "((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(rb"\\([0-9A-F]{2}|[\\\"nt])")
_OF_LETTERS = {b"n": b"\n", b"t": b"\t", b"\\": b"\\", b'"': b'"'}


def main(argv: Sequence[str] | None = None) -> int:
    """Print an identity a line; with `--against`, the programs whose identity is another."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("programs", nargs="*", help="names in STEPS; all by default")
    parser.add_argument("--against", type=Path, help="what an earlier call printed")
    arguments = parser.parse_args(argv)
    before = _read(arguments.against) if arguments.against else None
    differ = 0
    for name, found in _identities(arguments.programs):
        print(found, name, flush=True)
        if before is not None and before.get(name) != found:
            differ += 1
            print(f"{name} was {before.get(name, 'not there')}", file=sys.stderr)
    return int(differ > 0)


def identity(text: str) -> str:
    """The identity of a program, from its StableHLO as JAX prints it."""
    text = _MODULE.sub(lambda found: f'"{_without_places(found[1])}"', text)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _without_places(module: str) -> str:
    """A hash of a Mosaic module, of bytecode that is escaped as MLIR does it."""
    context = mlir.JaxIrContext()
    context.allow_unregistered_dialects = True
    context.append_dialect_registry(mlir.upstream_dialects)
    context.load_all_available_dialects()
    mosaic_gpu_dialect.register_dialect(context)
    with context:
        parsed = ir.Module.parse(_unescaped(module.encode()))
        printed = parsed.operation.get_asm(enable_debug_info=False)
    return hashlib.sha256(str(printed).encode()).hexdigest()


def _unescaped(text: bytes) -> bytes:
    def character(found: re.Match[bytes]) -> bytes:
        return _OF_LETTERS.get(found[1]) or bytes.fromhex(found[1].decode())

    return _ESCAPED.sub(character, text)


def _read(path: Path) -> dict[str, str]:
    """What a call printed: identities by the names of programs."""
    lines = (line.partition(" ") for line in path.read_text().splitlines())
    return {name: found for found, _, name in lines}


def _identities(names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The name and the identity of each program."""
    from jaxinfer.planning.named_shapes import shape_config
    from jaxinfer.serving.programs.program_set import program_of
    from tests.serving.programs.test_h200_steps import STEPS, programs_on

    config = dataclasses.replace(shape_config("0.6b"), num_hidden_layers=2)
    for name in names or STEPS:
        step = STEPS[name]
        program = program_of(programs_on(step.devices, config), step.key)
        yield name, identity(program.lower().as_text())


if __name__ == "__main__":
    sys.exit(main())
