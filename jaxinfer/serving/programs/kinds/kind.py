"""The interface of a kind of device program; all other code treats the kinds alike."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from typing import Any, ClassVar, Protocol

from jaxinfer.kernels.policy import Kernels
from jaxinfer.serving.programs.buckets import Buckets
from jaxinfer.serving.programs.programs import Program, Programs
from jaxinfer.serving.programs.resident import Resident, StepOutputs


class ProgramKey(Protocol):
    """The key of a program within its kind: a frozen dataclass, the only one of its name.

    Fields are JSON's plain values, tuples of them, and dataclasses of these. Its ``repr`` must
    contain everything that distinguishes its program: it is part of the program store's key.
    """

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def __hash__(self) -> int:
        """Equal for equal keys."""
        ...


class ProgramKind[Key: ProgramKey](ABC):
    """A kind of device program. Its one instance stands in `registry.KINDS`.

    Attributes:
        key_type: the class of its keys, and of no other kind's.
        uses_pages: whether its programs' shapes depend on the number of KV blocks.
        runs_user_code: whether its programs hold a caller's logits processor or sampler.
        pools: whether engines that sample nothing have its programs, too.
        is_slow_to_trace: whether, with Mosaic's kernels, its programs should be traced by worker
            processes.
    """

    key_type: type[Key]
    uses_pages: bool = True
    runs_user_code: bool = False
    pools: bool = False
    is_slow_to_trace: bool = True

    @abstractmethod
    def keys(self, buckets: Buckets, *, swaps: bool) -> Sequence[Key]:
        """The keys of all programs that an engine has, the slowest to compile first."""

    @abstractmethod
    def program(self, programs: Programs, key: Key) -> Program:
        """The program of a key, for the engine that `programs` describes."""

    def largest(self, buckets: Buckets, kernels: Kernels) -> Sequence[Key]:
        """Keys of the programs that may have the largest peak memory of the engine."""
        return ()

    def options(self, key: Key, *, num_devices: int) -> dict[str, Any]:
        """XLA's options for a program on a GPU, beside the options of all programs."""
        return {}

    def kernels(self, key: Key) -> Hashable:
        """A value that programs with the same large kernels share: one process traces them best."""
        return key

    def num_warm_up_runs(self, key: Key) -> int:
        """The number of runs on padding before the first request.

        The first run of a program loads its code, and one of the next records its kernels as a
        CUDA graph, which takes longer than a short step itself.
        """
        return 3

    def warm_up(
        self, programs: Programs, key: Key, call: Callable[..., Any], resident: Resident
    ) -> Resident:
        """Run it once on padding, which writes to block 0 and to unused slots.

        Programs that no answer waits for do nothing here.

        Args:
            resident: arrays that the program replaces are donated.

        Returns:
            The same with these results.
        """
        return resident


class StepKind[Key: ProgramKey](ProgramKind[Key]):
    """A kind of program that steps are made of: the forward pass, or the sampler."""

    @abstractmethod
    def run(
        self,
        key: Key,
        call: Callable[..., Any],
        resident: Resident,
        before: StepOutputs,
        given: Any,
    ) -> tuple[Resident, StepOutputs]:
        """Launch it; returns at once.

        Args:
            resident: arrays that the program replaces are donated.
            before: outputs of the step's programs before this one.
            given: the host's packed batch for it.

        Returns:
            `resident` and `before` with the program's results.
        """

    @abstractmethod
    def padding(self, programs: Programs, key: Key) -> tuple[StepOutputs, Any]:
        """`before` and `given` of a step that consists of padding."""

    def warm_up(
        self, programs: Programs, key: Key, call: Callable[..., Any], resident: Resident
    ) -> Resident:
        """Run it once on `padding`."""
        return self.run(key, call, resident, *self.padding(programs, key))[0]
