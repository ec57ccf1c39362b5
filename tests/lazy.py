"""torch and transformers, imported when a test first uses them: that takes each process seconds."""

import importlib
from typing import Any


class _Module:
    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # pytest asks every name in a module what it is
            raise AttributeError(name)
        return getattr(importlib.import_module(self._name), name)


torch = _Module("torch")
transformers = _Module("transformers")
modeling_qwen3 = _Module("transformers.models.qwen3.modeling_qwen3")
