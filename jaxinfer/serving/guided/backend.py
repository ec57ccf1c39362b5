"""What of llguidance is used: the grammar library, an extra, whose lack is one clear error."""

import functools
import importlib
from typing import Any

_MISSING = "structured_outputs needs the package llguidance (pip install 'jaxinfer[guided]')"


@functools.cache
def llguidance() -> Any:
    """The library.

    Raises:
        ImportError: it is not installed; says how to install it.
    """
    try:
        return importlib.import_module("llguidance")
    except ImportError as error:
        raise ImportError(_MISSING, name="llguidance") from error
