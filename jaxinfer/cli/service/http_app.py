"""The HTTP application of a front end, from settings that came as JSON."""

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI

from jaxinfer.serving.openai.app import create_app
from jaxinfer.serving.openai.settings import ServerSettings
from jaxinfer.serving.service.remote_llm import RemoteLLM


def make_app(llm: RemoteLLM, settings: Mapping[str, Any]) -> FastAPI:
    """The application that answers for an engine.

    Args:
        llm: the engine.
        settings: fields of `ServerSettings`; lists stand for tuples.

    Raises:
        ValueError: a setting is out of its range.
    """
    plain: dict[str, Any] = {
        name: tuple(v) if isinstance(v, list) else v for name, v in settings.items()
    }
    return create_app(llm, ServerSettings(**plain))
