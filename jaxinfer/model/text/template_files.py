"""Reads a model's chat templates, one or several by name, from wherever its directory has them."""

import pathlib
from collections.abc import Mapping
from typing import Any

from jaxinfer.errors import ModelLoadError
from jaxinfer.model.checkpoint.directory_files import additional_templates, has_file, read_text
from jaxinfer.model.text.added_tokens import SETTINGS_FILE

DEFAULT = "default"
TOOL_USE = "tool_use"
_DEFAULT_FILE = "chat_template.jinja"
_MAX_BYTES = 1 << 20


def read_templates(directory: pathlib.Path, settings: Mapping[str, Any]) -> dict[str, str]:
    """Text by name; empty if the model has none.

    `chat_template.jinja` is the default one, and the files of `additional_chat_templates` have
    their names; with any of them, `tokenizer_config.json` gives the default one at most.

    Raises:
        ModelLoadError: a file is damaged; one line that names it.
    """
    files = additional_templates(directory)
    if has_file(directory, _DEFAULT_FILE):
        files[DEFAULT] = _DEFAULT_FILE
    templates = {name: read_text(directory, file, _MAX_BYTES) for name, file in files.items()}
    if DEFAULT in templates:
        return templates
    given = _of_settings(settings.get("chat_template"), directory)
    if not templates:
        return given
    return templates | {name: text for name, text in given.items() if name == DEFAULT}


def _of_settings(given: Any, directory: pathlib.Path) -> dict[str, str]:
    if given is None:
        return {}
    if isinstance(given, str):
        return {DEFAULT: given}
    pairs = list(given.items()) if isinstance(given, Mapping) else []
    if isinstance(given, list):
        pairs = [_pair(entry) for entry in given]
    if pairs and all(isinstance(text, str) for pair in pairs for text in pair):
        return dict(pairs)
    raise ModelLoadError(
        f"{directory / SETTINGS_FILE}: chat_template must be text, or a list of objects with "
        "a name and a template, both text"
    )


def _pair(entry: Any) -> tuple[Any, Any]:
    """Name and template of an entry; what lacks one has None."""
    fields = entry if isinstance(entry, Mapping) else {}
    return fields.get("name"), fields.get("template")
