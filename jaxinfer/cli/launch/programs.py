"""The coding agents that `jaxinfer launch` knows, and what each reads of a server."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

KEY_VARIABLE = "JAXINFER_API_KEY"


@dataclass(frozen=True)
class ServedName:
    """A model of a server.

    Attributes:
        url: of the server, without a path.
        key: the server's; any text where it needs none.
        max_model_len: most tokens of a conversation; None if it is not known yet.
    """

    url: str
    name: str
    key: str
    max_model_len: int | None = None


@dataclass(frozen=True)
class Settings:
    """How a program is started.

    Attributes:
        environment: variables beside the user's own.
        arguments: come before the user's own.
    """

    environment: Mapping[str, str]
    arguments: Sequence[str] = field(default=())


@dataclass(frozen=True)
class Program:
    """A coding agent: its settings for a model of a server, and the command that installs it."""

    settings: Callable[[ServedName], Settings]
    install: str


def _claude(served: ServedName) -> Settings:
    models = ("MODEL", "SMALL_FAST_MODEL", *(f"DEFAULT_{kind}_MODEL" for kind in _KINDS))
    window = {}
    if served.max_model_len is not None:
        window = {"CLAUDE_CODE_AUTO_COMPACT_WINDOW": str(served.max_model_len)}
    return Settings(
        {
            "ANTHROPIC_BASE_URL": served.url,
            "ANTHROPIC_AUTH_TOKEN": served.key,
            "ANTHROPIC_API_KEY": "",  # it would be taken in the token's place
            **{f"ANTHROPIC_{name}": served.name for name in models},
            "CLAUDE_CODE_SUBAGENT_MODEL": served.name,
            # A line that differs in every request would stand before all that can be cached.
            "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            **window,
        }
    )


_KINDS = ("HAIKU", "SONNET", "OPUS")


def _codex(served: ServedName) -> Settings:
    provider = {
        "name": "jaxinfer",
        "base_url": f"{served.url}/v1",
        "env_key": KEY_VARIABLE,
        "wire_api": "responses",
    }
    values = {
        "model": json.dumps(served.name),
        "model_provider": '"jaxinfer"',
        **{f"model_providers.jaxinfer.{key}": json.dumps(text) for key, text in provider.items()},
        "web_search": '"disabled"',  # OpenAI's servers would run it
        "features.multi_agent": "false",  # its tools are a namespace, which the server refuses
    }
    if served.max_model_len is not None:
        values["model_context_window"] = str(served.max_model_len)
    arguments = [word for key, value in values.items() for word in ("-c", f"{key}={value}")]
    return Settings({KEY_VARIABLE: served.key}, arguments)


def _opencode(served: ServedName) -> Settings:
    model: dict[str, object] = {"name": served.name}
    if (length := served.max_model_len) is not None:
        model["limit"] = {"context": length, "output": max(1, length // 4)}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "jaxinfer",
        "options": {"baseURL": f"{served.url}/v1", "apiKey": served.key},
        "models": {served.name: model},
    }
    chosen = f"jaxinfer/{served.name}"
    config = {"provider": {"jaxinfer": provider}, "model": chosen, "small_model": chosen}
    return Settings({"OPENCODE_CONFIG_CONTENT": json.dumps(config)})


PROGRAMS: Mapping[str, Program] = {
    "claude": Program(_claude, "npm install -g @anthropic-ai/claude-code"),
    "codex": Program(_codex, "npm install -g @openai/codex"),
    "opencode": Program(_opencode, "npm install -g opencode-ai"),
}
"""By the name of the command."""
