"""Builds the memory report of an engine's devices, by owner and phase."""

import dataclasses
from collections.abc import Collection

from jaxinfer.profiling.memory.memory_marks import device_bytes, memory_mark
from jaxinfer.profiling.memory.phases import memory_phases
from jaxinfer.profiling.memory.report import MemoryReport
from jaxinfer.serving.driver.sleep_state import SleepTag
from jaxinfer.serving.programs.kinds.kind import ProgramKey
from jaxinfer.serving.runner.runner import Runner


def memory_report(runner: Runner, asleep: Collection[SleepTag] = ()) -> MemoryReport:
    """The memory report of a runner's devices, of which parts may sleep; from any thread."""
    memory = runner.memory
    now = memory_mark("generating", memory.devices)
    device, largest, held = memory.devices[0], memory.largest_program(), memory.held
    held_now = held
    if "weights" in asleep:
        held_now = dataclasses.replace(held_now, weights=0, step=None)
    if "kv_cache" in asleep:
        held_now = dataclasses.replace(held_now, kv_cache=0, slots=0, step=None)
    return MemoryReport(
        device=device.device_kind,
        num_devices=runner.report.num_devices,
        device_bytes=device_bytes(device),
        is_measured=now.in_use_bytes is not None,
        phases=memory_phases([*memory.marks, now], held, now=held_now),
        largest_program=None if largest is None else program_name(largest),
    )


def program_name(key: ProgramKey) -> str:
    """A program's kind and sizes, without sizes that are 0 or empty.

    >>> from jaxinfer.serving.programs.layout import DecodeShape
    >>> program_name(DecodeShape(rows=16, width=64))
    'DecodeShape(rows=16, width=64)'
    """
    values = {name: getattr(key, name) for name in key.__dataclass_fields__}
    sizes = ", ".join(f"{name}={value}" for name, value in values.items() if value)
    return f"{type(key).__name__}({sizes})"
