"""Tools for tests of code around the engine: a tiny model, a small engine, a fake device.

They need no GPU, no download and no package beside jaxinfer's own.
"""

from jaxinfer.testing.fake_runner import FakeRunner, continuation, next_token
from jaxinfer.testing.tiny_llm import TINY_SETTINGS, greedy_reference, tiny_llm
from jaxinfer.testing.tiny_model import TINY_CONFIG, tiny_params

__all__ = [
    "TINY_CONFIG",
    "TINY_SETTINGS",
    "FakeRunner",
    "continuation",
    "greedy_reference",
    "next_token",
    "tiny_llm",
    "tiny_params",
]
