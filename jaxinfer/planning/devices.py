"""Data of GPUs, by name: memory, bandwidth and matrix speed, measured or published.

Sources of published numbers (NVIDIA; 16-bit products with dense operands, float32 accumulation):

- H100: H100 data sheet; half of the figures that it gives "with sparsity".
- A100: A100 80GB data sheet; the 40 GB model, 1,555 GB/s. The 80 GB one is the SXM form.
- L40S, A10, T4: data sheets of these names. A T4 has no bfloat16: its figure is float16's.
- RTX 4090: Ada GPU architecture white paper, appendix A (float32 accumulation).

`memory_bytes` is what CUDA programs are told, which is less than the name says: driver, error
correction and reserved pages take some. It differs by about 1% between drivers and boards.
"""

import dataclasses

from jaxinfer.checks import check_real

_GIB = 2**30
_FORM = "MEMORY_GIB:GB_PER_S:TFLOPS, for example 80:3350:989"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chip:
    """One device's speeds and memory.

    Attributes:
        name: as printed; of a measured device, part of JAX's device kind.
        bytes_per_s: read bandwidth.
        flops_per_s: bfloat16 (or float16) matrix products, in operations a second.
        memory_bytes: of the device, as CUDA reports it; 0 if it plays no part.
        measured: both speeds were reached by a kernel on this device; otherwise they are the data
            sheet's, which no kernel reaches.
        linked: GPUs of one machine are joined by NVLink, as sums over devices want them.
        has_bfloat16: its matrix units take bfloat16.
    """

    name: str
    bytes_per_s: float
    flops_per_s: float
    memory_bytes: int = 0
    measured: bool = False
    linked: bool = False
    has_bfloat16: bool = True


H200 = Chip(
    name="H200",
    bytes_per_s=4.57e12,
    flops_per_s=764e12,
    memory_bytes=150_110_492_939,
    measured=True,
    linked=True,
)
"""Ceilings of the best kernels found on an H200 SXM; memory as the recorded runs report it."""
REACHED_BANDWIDTH = 4.57 / 4.8
"""Share of the 4.8 TB/s of an H200's data sheet that the best kernel reads."""
REACHED_MATRIX_SPEED = 764 / 989
"""Share of the 989 TFLOP/s there that the best matrix product makes."""


def _published(
    name: str, gib: float, gb_per_s: float, tflops: float, *, linked: bool = False, **more: bool
) -> Chip:
    return Chip(
        name=name,
        bytes_per_s=gb_per_s * 1e9,
        flops_per_s=tflops * 1e12,
        memory_bytes=int(gib * _GIB),
        linked=linked,
        **more,
    )


DEVICES = {
    "h200": H200,
    "h100": _published("H100 SXM", 79.10, 3350, 989, linked=True),
    "h100-pcie": _published("H100 PCIe", 79.10, 2000, 756),
    "a100": _published("A100 80GB", 79.15, 2039, 312, linked=True),
    "a100-40gb": _published("A100 40GB", 39.39, 1555, 312, linked=True),
    "l40s": _published("L40S", 44.40, 864, 362),
    "rtx4090": _published("RTX 4090", 23.52, 1008, 165.2),
    "a10": _published("A10", 22.06, 600, 125),
    "t4": _published("T4", 14.75, 320, 65, has_bfloat16=False),
}
_ALIASES = {"h100-sxm": "h100", "a100-80gb": "a100", "4090": "rtx4090"}


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
    """The measured chip of JAX's device kind, or None; then there is no floor to compare with."""
    measured = (chip for chip in DEVICES.values() if chip.measured)
    return next((chip for chip in measured if chip.name in device_kind), None)
