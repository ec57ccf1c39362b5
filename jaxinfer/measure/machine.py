"""Describes the machine of a measurement: device, versions, commit; part of every record."""

import importlib.metadata
import platform
from pathlib import Path
from typing import Any

from jaxinfer import __version__
from jaxinfer.cores import usable_cores

_PACKAGES = ("jax", "jaxlib", "jax-cuda12-plugin", "jax-cuda13-plugin", "flax", "numpy")


def describe_machine() -> dict[str, Any]:
    """Devices, driver, CPU and versions, as JSON-like values."""
    import jax

    devices = jax.devices()
    return {
        "platform": devices[0].platform,
        "device": devices[0].device_kind,
        "num_devices": len(devices),
        "driver": gpu_driver(),
        "cpu": cpu_name(),
        "cpu_cores": usable_cores(),
        "versions": package_versions(),
    }


def package_versions() -> dict[str, str]:
    """Versions of Python and of the packages that affect speed; absent ones are left out."""
    versions = {"python": platform.python_version(), "jaxinfer": __version__}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def gpu_driver() -> str | None:
    """Version of the NVIDIA driver, or None without one."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        return None
    # "NVRM version: NVIDIA UNIX ... x86_64 Kernel Module  580.159.04  ..."
    numbers = [word for word in text.splitlines()[0].split() if word[0].isdigit() and "." in word]
    return numbers[0] if numbers else None


def cpu_name() -> str:
    """The processor's name from Linux, or else from Python."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
