"""Lists every kind of device program: a new one is a file beside this and a line below."""

from typing import Any

from jaxinfer.serving.program_kinds.burst import BurstKind
from jaxinfer.serving.program_kinds.count_tokens import CountTokensKind
from jaxinfer.serving.program_kinds.decode import DecodeKind
from jaxinfer.serving.program_kinds.kind import ProgramKey, ProgramKind
from jaxinfer.serving.program_kinds.prefill import PrefillKind
from jaxinfer.serving.program_kinds.prompt_logprobs import PromptLogprobsKind
from jaxinfer.serving.program_kinds.sampler import SamplerKind
from jaxinfer.serving.program_kinds.set_edits import SetEditsKind
from jaxinfer.serving.program_kinds.swap import SwapKind

KINDS: dict[type, ProgramKind[Any]] = {
    kind.key_type: kind
    for kind in (
        DecodeKind(),
        PrefillKind(),
        BurstKind(),
        SamplerKind(),
        SetEditsKind(),
        CountTokensKind(),
        PromptLogprobsKind(),
        SwapKind(),
    )
}
"""By the class of its keys, the slowest to compile first."""


def kind_of(key: ProgramKey) -> ProgramKind[Any]:
    """The kind that a program is of.

    Raises:
        KeyError: no kind has such keys.
    """
    return KINDS[type(key)]
