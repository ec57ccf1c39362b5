"""Lists every kind of device program: a new one is a file beside this and a line below."""

from typing import Any

from jaxinfer.serving.programs.kinds.block_rows import BlockRowsKind
from jaxinfer.serving.programs.kinds.copy_blocks import CopyBlocksKind
from jaxinfer.serving.programs.kinds.count_tokens import CountTokensKind
from jaxinfer.serving.programs.kinds.decode import DecodeKind
from jaxinfer.serving.programs.kinds.kind import ProgramKey, ProgramKind, StepKind
from jaxinfer.serving.programs.kinds.prefill import PrefillKind
from jaxinfer.serving.programs.kinds.prompt_logprobs import PromptLogprobsKind
from jaxinfer.serving.programs.kinds.read_captured import ReadCapturedKind
from jaxinfer.serving.programs.kinds.sampled_decode import SampledDecodeKind
from jaxinfer.serving.programs.kinds.sampler import SamplerKind
from jaxinfer.serving.programs.kinds.scored_tokens import ScoredTokensKind
from jaxinfer.serving.programs.kinds.set_edits import SetEditsKind, SetMasksKind
from jaxinfer.serving.programs.kinds.speculative_decode import SpeculativeDecodeKind, WriteTextsKind
from jaxinfer.serving.programs.kinds.write_adapter import WriteAdapterKind

KINDS: dict[type, ProgramKind[Any]] = {
    kind.key_type: kind
    for kind in (
        DecodeKind(),
        PrefillKind(),
        SpeculativeDecodeKind(),
        SampledDecodeKind(),
        SamplerKind(),
        SetEditsKind(),
        SetMasksKind(),
        CountTokensKind(),
        WriteTextsKind(),
        PromptLogprobsKind(),
        ScoredTokensKind(),
        BlockRowsKind(),
        CopyBlocksKind(),
        WriteAdapterKind(),
        ReadCapturedKind(),
    )
}
"""All kinds by the class of their keys, the slowest to compile first."""


def kind_of(key: ProgramKey) -> ProgramKind[Any]:
    """The kind of the program with this key; KeyError if no kind has it."""
    return KINDS[type(key)]


def step_kind_of(key: ProgramKey) -> StepKind[Any]:
    """The kind of a program that steps consist of.

    Raises:
        KeyError: no kind has such keys.
        TypeError: its programs are no part of a step.
    """
    kind = kind_of(key)
    if not isinstance(kind, StepKind):
        raise TypeError(f"{key} is no program of a step")
    return kind
