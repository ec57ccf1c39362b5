"""Measures a device's highest speeds, for an entry of `jaxinfer.planning.devices.MEASURED`.

python -m scripts.kernels.ceilings     # this device's, as JSON
"""

import json
import sys
from typing import Any

import jax

from jaxinfer.measure.ceilings import (
    array_bytes,
    best,
    copies,
    matrix_rows,
    measure_rates,
    products,
    reads,
)
from jaxinfer.planning.devices import published_chip


def measure_ceilings() -> dict[str, Any]:
    """The first device's highest speeds, JSON-like, for an entry of `planning.devices.MEASURED`.

    Returns:
        "read_bytes_per_s"; "copy_bytes_per_s", of bytes read and written together; "flops_per_s",
        of bfloat16 products; all "calculations" that were tried; and the "data_sheet", or None.
    """
    device = jax.devices()[0]
    sizes = sorted({array_bytes(device), array_bytes(device, times=2)})
    rates = {
        "read_bytes_per_s": measure_rates([each for size in sizes for each in reads(size)]),
        "copy_bytes_per_s": measure_rates([each for size in sizes for each in copies(size)]),
        "flops_per_s": measure_rates(products(matrix_rows(device), "bfloat16")),
    }
    chip = published_chip(device.device_kind)
    return {
        "device": device.device_kind,
        "jax": jax.__version__,
        **{name: best(found).per_s for name, found in rates.items()},
        "calculations": {
            name: {rate.name: rate.per_s for rate in found} for name, found in rates.items()
        },
        "data_sheet": chip and {"bytes_per_s": chip.bytes_per_s, "flops_per_s": chip.flops_per_s},
    }


def main() -> int:
    """Print the first device's speeds."""
    json.dump(measure_ceilings(), sys.stdout, indent=2)
    print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
