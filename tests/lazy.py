"""Packages of seconds, imported when a test first uses them and not by each process that collects.

A test is skipped where they are not installed: the extra `light` leaves torch and transformers out.
"""

from typing import Any

import pytest


class _Module:
    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # pytest asks every name in a module what it is
            raise AttributeError(name)
        return getattr(pytest.importorskip(self._name), name)


anthropic = _Module("anthropic")
torch = _Module("torch")
transformers = _Module("transformers")
modeling_qwen3 = _Module("transformers.models.qwen3.modeling_qwen3")
