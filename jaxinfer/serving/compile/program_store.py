"""Traced programs on disk: a process that finds its own there does not trace them again.

Tracing holds Python's global lock, about a second for each program with kernels, and JAX's
compilation cache, which keeps only compiled programs, does not avoid it. Entries are `jax.export`'s
portable StableHLO, which is data: reading it runs nothing.
"""

import hashlib
import importlib.metadata
import platform
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.export

from jaxinfer.kernels.attention.kv_cache_spec import Tally
from jaxinfer.kernels.attention.pages import Pages
from jaxinfer.serving.compile.cache.entries import Entries
from jaxinfer.serving.programs.programs import Program
from jaxinfer.serving.programs.speculative.drafter import DraftState
from jaxinfer.serving.programs.speculative.eagle3.pages import DraftPages
from jaxinfer.serving.sampling.layout import LogitEdits, SamplingArrays, SlotState

_PACKAGE = Path(__file__).parents[2]

# Packages whose versions affect tracing and compiling, beside this package's own source.
_DISTRIBUTIONS = (
    *("jax", "jaxlib", "jax-triton", "triton"),
    *("jax-cuda12-plugin", "jax-cuda12-pjrt", "jax-cuda13-plugin", "jax-cuda13-pjrt"),
)

# Their serialized form depends on the versions of JAX and Triton, as does an entry's identity.
_KERNEL_CALLS = (
    *("jaxinfer_paged_decode_attention", "jaxinfer_paged_decode_attention_int8"),
    *("mosaic_gpu_v2", "triton_kernel_call"),
)

# JAX's messages to its user; no program depends on them.
_TOLD = (
    *("jax_log_compiles", "jax_logging_level", "jax_debug_log_modules"),
    *("jax_pprint_use_color", "jax_traceback_filtering"),
)

# The only arguments that are more than tuples and dictionaries of arrays.
for _kind in (Pages, Tally, SamplingArrays, SlotState, LogitEdits, DraftState, DraftPages):
    jax.export.register_namedtuple_serialization(
        _kind, serialized_name=f"jaxinfer.{_kind.__name__}"
    )


class ProgramStore:
    """A directory of traced programs, each under a digest of everything that it depends on.

    See `Entries` for valid entries and disk errors.
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        self._entries = Entries(self.directory, "jaxinfer program 1", ".stablehlo")

    def holds(self, identity: str) -> bool:
        """True if there is an entry, valid or not."""
        return self._entries.holds(identity)

    def load(self, identity: str) -> jax.export.Exported | None:
        """The program saved under this identity, which is `identity_of`'s, or None."""
        if (data := self._entries.read(identity)) is None:
            return None
        try:
            return jax.export.deserialize(bytearray(data))
        except Exception:  # a valid entry that this JAX can't read after all
            return None

    def save(self, identity: str, program: jax.export.Exported) -> None:
        """Save a program atomically."""
        self._entries.write(identity, bytes(program.serialize()))


def export_program(program: Program, platform: str) -> jax.export.Exported:
    """Trace and lower a program for a platform as `jax.export` names it ("cpu", "cuda")."""
    return export_function(program.jit(), program.arguments, platform)


def export_function(jitted: Any, arguments: Sequence[Any], platform: str) -> jax.export.Exported:
    """Trace and lower a jitted function, with kernels or without.

    Args:
        jitted: from `jax.jit`.
        arguments: trees of ``jax.ShapeDtypeStruct``.
        platform: as `jax.export` names it.
    """
    checks = [jax.export.DisabledSafetyCheck.custom_call(name) for name in _KERNEL_CALLS]
    export = jax.export.export(jitted, platforms=[platform], disabled_checks=checks)
    return export(*arguments)


def identity_of(*parts: object) -> str:
    """A digest of everything that tracing reads: `parts`, this source, versions, JAX's settings.

    Args:
        parts: values whose ``repr`` distinguishes them and is the same in every process.
    """
    text = "\n".join(map(repr, (*parts, _environment(), _settings())))
    return hashlib.sha256(text.encode()).hexdigest()


@cache
def _environment() -> tuple[object, ...]:
    versions = []
    for name in _DISTRIBUTIONS:
        try:
            versions.append((name, importlib.metadata.version(name)))
        except importlib.metadata.PackageNotFoundError:
            continue
    return platform.python_version(), tuple(versions), _source_digest()


def _source_digest() -> str:
    """A digest of all Python files of this package, so that an edited kernel is traced anew."""
    total = hashlib.sha256()
    for path in _sources():
        total.update(str(path.relative_to(_PACKAGE)).encode() + b"\0")
        total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()


def _sources() -> list[Path]:
    return sorted(_PACKAGE.rglob("*.py"))


def _settings() -> list[tuple[str, str]]:
    """JAX's settings, such as the precision of products, which tracing may read; not its caches."""
    names = sorted(n for n in jax.config.values if "cache" not in n and n not in _TOLD)
    return [(name, repr(getattr(jax.config, name, None))) for name in names]
