"""XLA's options for programs whose only product is that with the head."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

# Trying out Triton's products would be most of their compiling.
HEAD_OPTIONS: Mapping[str, Any] = MappingProxyType({"xla_gpu_enable_triton_gemm": False})
