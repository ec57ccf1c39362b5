"""Assigns the kernels of a trace to the steps that launched them, and to parts of the model."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from jaxinfer.profiling.parts import OTHER
from jaxinfer.profiling.trace.steps import StepFacts
from jaxinfer.profiling.trace.xplane import KernelEvent

Programs = Mapping[str, tuple[str, Mapping[str, str | None]]]
"""By key as in `StepFacts.programs`: the module's name, and the parts of its instructions."""
_WITH_SAMPLER = ("jit_sampled_decode", "jit_speculative_decode")
_FORWARD = ("jit_prefill", "jit_decode", *_WITH_SAMPLER)


class PartEvent(NamedTuple):
    """A kernel that ran, with the part of the model that it belongs to."""

    event: KernelEvent
    part: str


class DeviceStep(NamedTuple):
    """A step as the device ran it, from the first to the last kernel of its programs.

    Attributes:
        kernels: in the order of their beginnings; never empty. Copies between host and device that
            follow the last kernel of a program are among them, but not in the step's time.
    """

    facts: StepFacts
    kernels: Sequence[PartEvent]

    @property
    def start_ns(self) -> float:
        """Start of its first kernel, in nanoseconds on the trace's clock."""
        return self.kernels[0].event.start_ns

    @property
    def end_ns(self) -> float:
        """End of its programs' last kernel, in nanoseconds on the trace's clock."""
        events = [each.event for each in self.kernels]
        return max(event.end_ns for event in [e for e in events if e.module] or events)

    @property
    def span_s(self) -> float:
        """Seconds from its first kernel to the end of its last."""
        return (self.end_ns - self.start_ns) * 1e-9

    @property
    def busy_s(self) -> float:
        """Seconds in which any of its kernels ran."""
        return self.span_s - sum(self.gaps_s)

    @property
    def gaps_s(self) -> list[float]:
        """Seconds of each stretch within the step in which no kernel ran."""
        gaps, end, last = [], self.start_ns, self.end_ns
        for kernel in self.kernels:
            start = min(kernel.event.start_ns, last)
            if start > end:
                gaps.append((start - end) * 1e-9)
            end = max(end, kernel.event.end_ns)
        return gaps


def device_steps(
    steps: Sequence[StepFacts], kernels: Iterable[KernelEvent], programs: Programs
) -> list[DeviceStep]:
    """The steps of one recording, as far as the trace holds kernels of them.

    The device runs programs in order, and every step begins with a forward pass. Where a trace does
    not number the runs of programs, one begins with another program. A decode step with its
    sampler, which the next may follow at once, begins where its first instruction comes again.

    Args:
        steps: the steps, in the order of their launches.
        kernels: in the order of their beginnings.
    """
    found: list[list[KernelEvent]] = []
    runs: dict[tuple[str, int], int] = {}
    last, first, before = ("", 0), "", ""  # the run, its first instruction, the one before
    for event in kernels:
        run = (event.module, event.run)
        comes_again = event.module.startswith(_WITH_SAMPLER) and event.op == first != before
        is_new = run not in runs if event.run else run != last or comes_again
        if is_new and event.module.startswith(_FORWARD):
            found.append([])
        if is_new:
            runs[run] = len(found) - 1
        if event.module:
            last, before, first = run, event.op, event.op if is_new else first
        index = runs.get(run, len(found) - 1)
        if index >= 0:
            found[index].append(event)
    return [
        DeviceStep(facts, [PartEvent(event, _part(facts, event, programs)) for event in own])
        for facts, own in zip(steps, found, strict=False)
        if own
    ]


def _part(facts: StepFacts, event: KernelEvent, programs: Programs) -> str:
    """The part of the instruction that launched an event, by the program that holds it."""
    of_step = (programs[key] for key in facts.programs if key in programs)
    parts = next((parts for module, parts in of_step if module == event.module), {})
    return parts.get(event.op) or OTHER
