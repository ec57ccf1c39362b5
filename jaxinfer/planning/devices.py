"""Data of GPUs, by name: memory, bandwidth and matrix speed, measured or published.

Sources of published numbers (NVIDIA; 16-bit products with dense operands, float32 accumulation):

- H200, H100: data sheets of these names; half of the figures that they give "with sparsity".
- A100: A100 80GB data sheet; the 40 GB model, 1,555 GB/s. The 80 GB one is the SXM form.
- L40S, A10, T4: data sheets of these names. A T4 has no bfloat16: its figure is float16's.
- RTX 4090: Ada GPU architecture white paper, appendix A (float32 accumulation).

The same sources give products of 8-bit values, float8_e4m3fn from Ada on and integers on all of
them, twice the speed; integers on the RTX 4090 four times.

`memory_bytes` is the size that CUDA reports, which is less than the name says: driver, error
correction and reserved pages take some. It differs by about 1% between drivers and boards.
"""

import dataclasses
from typing import Any

from jaxinfer.checks import check_real

_GIB = 2**30
_FORM = "MEMORY_GIB:GB_PER_S:TFLOPS, for example 80:3350:989"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chip:
    """One device's speeds and memory.

    Attributes:
        name: as printed.
        bytes_per_s: read bandwidth.
        flops_per_s: bfloat16 (or float16) matrix products, in operations a second.
        memory_bytes: the device's memory, as CUDA reports it; 0 if not needed.
        measured: all speeds were reached by a kernel on this device; otherwise they are the data
            sheet's, which no kernel reaches.
        copy_bytes_per_s: bytes read and bytes written, together, while one array is copied into
            another; None if it was not measured.
        linked: GPUs of one machine are joined by NVLink, which all-reduces need.
        has_bfloat16: its matrix units take bfloat16.
        fp8_factor: speed of products of float8_e4m3fn over that of 16 bits; 1 where these values
            are converted first.
        int8_factor: the same of 8-bit integers.
    """

    name: str
    bytes_per_s: float
    flops_per_s: float
    memory_bytes: int = 0
    measured: bool = False
    copy_bytes_per_s: float | None = None
    linked: bool = False
    has_bfloat16: bool = True
    fp8_factor: float = 1.0
    int8_factor: float = 1.0

    @property
    def is_hopper(self) -> bool:
        """Whether kernels for quantized weights and for experts run on it."""
        return self.name.startswith(("H100", "H200"))

    def code_flops_per_s(self, codes: str) -> float:
        """Operations a second of products of codes by codes, "fp8" or "int8"."""
        return self.flops_per_s * {"fp8": self.fp8_factor, "int8": self.int8_factor}[codes]


def _published(
    name: str, gib: float, gb_per_s: float, tflops: float, *, linked: bool = False, **more: Any
) -> Chip:
    return Chip(
        name=name,
        bytes_per_s=gb_per_s * 1e9,
        flops_per_s=tflops * 1e12,
        memory_bytes=int(gib * _GIB),
        linked=linked,
        **more,
    )


def _measured(published: Chip, *, read: float, copy: float, flops: float) -> Chip:
    """The chip at the speeds that kernels reached on it, in bytes and operations a second."""
    return dataclasses.replace(
        published, bytes_per_s=read, copy_bytes_per_s=copy, flops_per_s=flops, measured=True
    )


PUBLISHED = {
    # Memory as the recorded runs report it.
    "h200": Chip(
        name="H200",
        bytes_per_s=4.8e12,
        flops_per_s=989e12,
        memory_bytes=150_110_492_939,
        linked=True,
        fp8_factor=2,
        int8_factor=2,
    ),
    "h100": _published("H100 SXM", 79.10, 3350, 989, linked=True, fp8_factor=2, int8_factor=2),
    "h100-pcie": _published("H100 PCIe", 79.10, 2000, 756, fp8_factor=2, int8_factor=2),
    "a100": _published("A100 80GB", 79.15, 2039, 312, linked=True, int8_factor=2),
    "a100-40gb": _published("A100 40GB", 39.39, 1555, 312, linked=True, int8_factor=2),
    "l40s": _published("L40S", 44.40, 864, 362, fp8_factor=2, int8_factor=2),
    "rtx4090": _published("RTX 4090", 23.52, 1008, 165.2, fp8_factor=2, int8_factor=4),
    "a10": _published("A10", 22.06, 600, 125, int8_factor=2),
    "t4": _published("T4", 14.75, 320, 65, has_bfloat16=False, int8_factor=2),
}
"""Chips at the speeds of their data sheets."""
MEASURED = {
    "h200": _measured(PUBLISHED["h200"], read=4.57e12, copy=4.3e12, flops=764e12),
    "h100": _measured(PUBLISHED["h100"], read=3.18e12, copy=3.01e12, flops=745e12),
}
"""Chips at the highest speeds that kernels reach: `python -m scripts.kernels.ceilings`."""
H200 = MEASURED["h200"]
REACHED_BANDWIDTH = H200.bytes_per_s / PUBLISHED["h200"].bytes_per_s
"""Share of the 4.8 TB/s of an H200's data sheet that the best kernel reads."""
REACHED_MATRIX_SPEED = H200.flops_per_s / PUBLISHED["h200"].flops_per_s
"""Share of the 989 TFLOP/s there that the best matrix product makes."""
DEVICES = {**PUBLISHED, "h200": H200}
"""Chips that can be planned for. Expected times are fitted to an H200's measured speeds."""
_ALIASES = {"h100-sxm": "h100", "a100-80gb": "a100", "4090": "rtx4090"}
_KINDS = {
    "H200": "h200",
    "H100 80GB HBM3": "h100",
    "H100 PCIe": "h100-pcie",
    "A100-SXM4-80GB": "a100",
    "A100-SXM4-40GB": "a100-40gb",
    "L40S": "l40s",
    "GeForce RTX 4090": "rtx4090",
    "A10": "a10",
    "Tesla T4": "t4",
}
"""JAX's device kinds without "NVIDIA". Only whole names count: an "A10G", an "H200 NVL", a "GH200"
and a part of a GPU ("H200 MIG 1g.18gb") have other speeds."""


def find_device(name: str) -> Chip:
    """A device by its name in `DEVICES` (or "h100-sxm", "a100-80gb", "4090"), or by its numbers.

    Args:
        name: in any case, or "MEMORY_GIB:GB_PER_S:TFLOPS" of one that is not in the table.

    Raises:
        ValueError: neither; lists the accepted names.
    """
    key = name.strip().lower()
    chip = DEVICES.get(_ALIASES.get(key, key))
    if chip is not None:
        return chip
    if ":" in key:
        return _by_numbers(key)
    raise ValueError(
        f"unknown device {name!r}; there are {', '.join(DEVICES)}, or give its numbers as {_FORM}"
    )


def _by_numbers(text: str) -> Chip:
    try:
        gib, gb_per_s, tflops = (float(part) for part in text.split(":"))
    except ValueError:
        raise ValueError(f"a device's numbers are {_FORM}; got {text!r}") from None
    check_real("a device's memory in GiB", gib, 0.1, 1e5)
    check_real("a device's bandwidth in GB/s", gb_per_s, 1, 1e6)
    check_real("a device's matrix speed in TFLOP/s", tflops, 0.1, 1e6)
    return _published(text, gib, gb_per_s, tflops)


def find_chip(device_kind: str) -> Chip | None:
    """The measured chip of JAX's device kind, or None, which leaves no floor to compare with."""
    return MEASURED.get(_key(device_kind))


def published_chip(device_kind: str) -> Chip | None:
    """The chip of JAX's device kind at the speeds of its data sheet, or None if it is not known."""
    return PUBLISHED.get(_key(device_kind))


def _key(device_kind: str) -> str:
    return _KINDS.get(device_kind.removeprefix("NVIDIA "), "")
