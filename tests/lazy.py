"""Modules that take seconds to import, imported by the first test that needs them."""

import importlib
from typing import Any


class LazyModule:
    """Stands for a module until something of it is asked for."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_"):  # pytest asks every name in a module what it is
            raise AttributeError(attribute)
        return getattr(importlib.import_module(self._name), attribute)


torch: Any = LazyModule("torch")
transformers: Any = LazyModule("transformers")
