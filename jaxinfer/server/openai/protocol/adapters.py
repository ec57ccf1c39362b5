"""The bodies of routes that load and unload LoRA adapters, by vLLM's names."""

from typing import Annotated

from pydantic import Field

from jaxinfer.server.openai.protocol.base import Body

_Name = Annotated[str, Field(min_length=1, max_length=256)]


class LoadAdapterBody(Body):
    """An adapter to load."""

    lora_name: _Name
    lora_path: Annotated[str, Field(min_length=1, max_length=4096)] = Field(
        description="A directory of the server's machine, as PEFT saves it."
    )
    load_inplace: bool | None = Field(None, description="Replace a loaded one of that name.")


class UnloadAdapterBody(Body):
    """A loaded adapter."""

    lora_name: _Name
