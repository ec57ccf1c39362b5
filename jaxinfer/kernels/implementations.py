"""The table of modules that implement each op, by backend; imported at first use.

Kernels import packages that only their devices need, so nothing here is imported before it is
chosen. Names are written in full, so that a search for a module finds this table.
"""

import importlib
from collections.abc import Mapping
from types import ModuleType
from typing import Literal

from jaxinfer.kernels.choice import Backend

Product = Literal["small", "medium", "medium_codes", "large", "add_norm_codes", "experts"]
Op = Literal["decode", "prefill", "norm_rope_write", Product, "add_norm", "silu_mul", "all_reduce"]

_XLA: Mapping[Op, str] = {
    "decode": "jaxinfer.kernels.attention.xla",
    "prefill": "jaxinfer.kernels.attention.xla",
    "norm_rope_write": "jaxinfer.kernels.norms.xla",
}
MODULES: Mapping[Backend, Mapping[Op, str]] = {
    "mosaic": {
        "decode": "jaxinfer.kernels.attention.mosaic.decode",
        "prefill": "jaxinfer.kernels.attention.mosaic.prefill",
        "norm_rope_write": "jaxinfer.kernels.norms.mosaic.norm_rope_write",
        "small": "jaxinfer.kernels.matmul.mosaic.small",
        "medium": "jaxinfer.kernels.matmul.mosaic.medium",
        "medium_codes": "jaxinfer.kernels.matmul.mosaic.medium_codes",
        "large": "jaxinfer.kernels.matmul.mosaic.large",
        "experts": "jaxinfer.kernels.experts.mosaic",
        "add_norm": "jaxinfer.kernels.norms.mosaic.add_norm",
        "add_norm_codes": "jaxinfer.kernels.norms.mosaic.add_norm_codes",
        "silu_mul": "jaxinfer.kernels.norms.mosaic.silu_mul",
        "all_reduce": "jaxinfer.kernels.collectives.mosaic.all_reduce",
    },
    "triton": {
        **_XLA,
        "decode": "jaxinfer.kernels.attention.triton.decode",
        "prefill": "jaxinfer.kernels.attention.triton.prefill",
    },
    "numba": {**_XLA, "decode": "jaxinfer.kernels.attention.numba.decode"},
    "xla": _XLA,
}
"""Every backend does attention and the page write; for ops that it lacks, `matmul/xla.py` does."""


def module_of(backend: Backend, op: Op) -> ModuleType:
    """The module with a backend's functions for one op.

    Raises:
        KeyError: the backend has none.
        ImportError: a package that it needs is missing, which `choose_backend` rules out.
    """
    return importlib.import_module(MODULES[backend][op])


def import_all(backend: Backend) -> None:
    """Import all kernels that a backend's programs may hold, which registers their calls with XLA.

    A program that was traced elsewhere needs it before it is compiled.
    """
    for op in MODULES[backend]:
        module_of(backend, op)
