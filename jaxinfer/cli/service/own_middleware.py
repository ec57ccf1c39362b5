"""ASGI middleware of the operator's own, named by import path."""

import importlib
import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the parent of a service loads no HTTP
    from fastapi import FastAPI


def load_middleware(paths: Sequence[str]) -> list[Any]:
    """The objects that the paths name, in order.

    Args:
        paths: such as ``package.module.Name``, of a class whose instances wrap an ASGI application,
            or of a coroutine function of a request and the next handler.

    Raises:
        ValueError: one can't be imported, or is neither; names it.
    """
    return [_load(path) for path in paths]


def add_middleware(app: "FastAPI", middleware: Sequence[Any]) -> None:
    """Wrap an application in middleware; the last is the outermost, as in vLLM."""
    for each in middleware:
        if inspect.isclass(each):
            kind: Any = each
            app.add_middleware(kind)
        else:
            app.middleware("http")(each)


def _load(path: str) -> Any:
    module, _, name = path.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"--middleware {path}: {error}") from None
    if not inspect.isclass(found) and not inspect.iscoroutinefunction(found):
        raise ValueError(f"--middleware {path} is neither a class nor a coroutine function")
    return found
