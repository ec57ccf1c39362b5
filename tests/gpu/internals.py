"""The parts of an engine that tests look into."""

from jaxinfer import LLM
from jaxinfer.serving.runner.runner import Runner


def runner_of(llm: LLM) -> Runner:
    """Its device side."""
    return llm._loaded.replicas[0].runner


def num_preemptions(llm: LLM) -> int:
    """How often its scheduler took a running request's blocks."""
    return llm._loaded.replicas[0].scheduler.num_preemptions
