"""The registry of readouts: a new one is a file beside this and a line below."""

from jaxinfer.serving.runner.readouts.pooled import Pooled
from jaxinfer.serving.runner.readouts.prompt_logprobs import PromptLogprobs
from jaxinfer.serving.runner.readouts.readout import Readout
from jaxinfer.serving.runner.readouts.scored_tokens import ScoredTokens

READOUTS: tuple[Readout, ...] = (PromptLogprobs(), ScoredTokens(), Pooled())
