"""Imports optional packages; the absence of one is one clear error."""

import importlib
from typing import Any

from jaxinfer.errors import MissingPackageError


def import_optional(module: str, *, needed_by: str, install: str) -> Any:
    """A module of a package that jaxinfer does without; `needed_by` begins the error.

    Raises:
        MissingPackageError: the package, or one that it needs, is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise MissingPackageError(
            f"{needed_by} needs the package {package} (pip install '{install}')", name=package
        ) from error
