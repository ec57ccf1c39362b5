"""Which module implements each op, by backend; imported at first use.

Kernels import packages that only their devices need, so nothing here is imported before it is
chosen. The names stand in full, so that a search for a module finds this table.
"""

import importlib
from collections.abc import Mapping
from types import ModuleType
from typing import Literal

from jaxinfer.kernels.choice import Backend

Op = Literal[
    "decode", "prefill", "norm_rope_write", "skinny", "wide", "add_norm", "silu_mul", "all_reduce"
]

_XLA: Mapping[Op, str] = {
    "decode": "jaxinfer.kernels.reference",
    "prefill": "jaxinfer.kernels.reference",
    "norm_rope_write": "jaxinfer.kernels.page_write",
}
MODULES: Mapping[Backend, Mapping[Op, str]] = {
    "mosaic": {
        "decode": "jaxinfer.kernels.mosaic.attention.decode",
        "prefill": "jaxinfer.kernels.mosaic.attention.prefill",
        "norm_rope_write": "jaxinfer.kernels.mosaic.norm_rope_write",
        "skinny": "jaxinfer.kernels.mosaic.products.skinny",
        "wide": "jaxinfer.kernels.mosaic.products.wide",
        "add_norm": "jaxinfer.kernels.mosaic.add_norm",
        "silu_mul": "jaxinfer.kernels.mosaic.silu_mul",
        "all_reduce": "jaxinfer.kernels.mosaic.sums.all_reduce",
    },
    "triton": {
        **_XLA,
        "decode": "jaxinfer.kernels.triton.decode",
        "prefill": "jaxinfer.kernels.triton.prefill",
    },
    "numba": {**_XLA, "decode": "jaxinfer.kernels.numba.decode"},
    "xla": _XLA,
}
"""Every backend does attention and the page write; what else it lacks, `linear.py` does."""


def module_of(backend: Backend, op: Op) -> ModuleType:
    """The module with a backend's functions for one op.

    Raises:
        KeyError: the backend has none.
        ImportError: a package that it needs is missing, which `choose_backend` rules out.
    """
    return importlib.import_module(MODULES[backend][op])


def import_all(backend: Backend) -> None:
    """Import whatever a backend's programs may hold, which tells XLA how its kernels are called.

    A program that was traced elsewhere needs it before it is compiled.
    """
    for op in MODULES[backend]:
        module_of(backend, op)
