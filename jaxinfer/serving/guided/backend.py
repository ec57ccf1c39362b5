"""What of llguidance is used: the grammar library, an extra, whose lack is one clear error."""

import functools
from typing import Any

_MISSING = "structured_outputs needs the package llguidance (pip install 'jaxinfer[guided]')"


@functools.cache
def llguidance() -> Any:
    """The library.

    Raises:
        ImportError: it is not installed; says how to install it.
    """
    try:
        import llguidance as library
    except ImportError as error:
        raise ImportError(_MISSING, name="llguidance") from error
    return library
