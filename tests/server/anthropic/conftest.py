"""The engine and the apps of OpenAI's routes: Anthropic's are beside them."""

from tests.server.openai.conftest import client, engine, make_client, nothing_is_left

__all__ = ["client", "engine", "make_client", "nothing_is_left"]
