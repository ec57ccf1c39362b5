"""Resolves a model name (a directory, a hub id, a bundled model's or none) to a directory."""

import re
from pathlib import Path

from jaxinfer.errors import ModelLoadError
from jaxinfer.model.checkpoint.directory_files import TEMPLATES_DIRECTORY

BUNDLED_MODEL = Path(__file__).parents[2] / "assets" / "model"
BUNDLED_MODELS = {
    "bundled": BUNDLED_MODEL,
    "bundled-experts": BUNDLED_MODEL.with_name("experts_model"),
}
"""The bundled models, dense and with experts, by the names that stand for their directories."""
BUNDLED_DRAFT_HEADS = {
    "eagle3": BUNDLED_MODEL.with_name("draft_head"),
    "dflash": BUNDLED_MODEL.with_name("dflash_head"),
}
"""The bundled model's draft heads, by method."""
BUNDLED_HEAD_NAME = "bundled"
"""The name of the bundled model's draft head where a head is asked for."""
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.\-]*(/[A-Za-z0-9][\w.\-]*)?", re.ASCII)
# Weights and text files only: no Python, no pickles, no other frameworks' copies.
HUB_FILES = [
    "config.json",
    "generation_config.json",
    "*.safetensors",
    "*.safetensors.index.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.*",
    f"{TEMPLATES_DIRECTORY}/*.jinja",
    "modules.json",
    "*_Pooling/config.json",
    "config_sentence_transformers.json",
]


def resolve_model(model: str | Path | None, revision: str | None = None) -> Path:
    """The directory of a model, downloaded first if it is a hub id.

    Args:
        model: a directory, a Hugging Face hub id, or a name of `BUNDLED_MODELS`, of which None is
            the first. A directory of such a name is given as a `Path` or with a slash.
        revision: branch, tag or commit on the hub.

    Raises:
        ModelLoadError: nothing there, or the hub can't give it; one line.
    """
    if (bundled := bundled_directory("bundled" if model is None else model)) is not None:
        return bundled
    name = str(model)
    if not name:
        raise ModelLoadError("model: an empty name; give a directory or a hub id, or leave it out")
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    refuse_gguf(name)
    if path.exists():
        raise ModelLoadError(f"{name}: is a file; give the directory that holds config.json")
    if isinstance(model, Path) or not is_hub_id(name):
        raise ModelLoadError(f"{name}: no such directory")
    return _download(name, revision)


def bundled_directory(model: str | Path) -> Path | None:
    """The directory of a bundled model that is named, else None; a `Path` is no name."""
    return None if isinstance(model, Path) else BUNDLED_MODELS.get(model)


def refuse_bundled(name: str) -> None:
    """Raise ModelLoadError for a bundled model where one of the hub's is asked for."""
    if name in BUNDLED_MODELS:
        raise ModelLoadError(
            f"{name}: comes with jaxinfer, so it is never downloaded or removed; name a hub id"
        )


def is_hub_id(name: str) -> bool:
    """Whether a name may be a model's on the hub, such as "Qwen/Qwen3-0.6B"."""
    return _HUB_ID.fullmatch(name) is not None and ".." not in name


def hub_cause(error: Exception, revision: str | None) -> str:
    """Why the hub gave no model, in one line."""
    from huggingface_hub import constants, errors

    if isinstance(error, errors.GatedRepoError):
        return "the hub asks for access rights to it; log in with `hf auth login`"
    if isinstance(error, errors.RepositoryNotFoundError):
        return "no such model on the Hugging Face hub"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"the hub has no revision {revision!r} of it"
    if isinstance(error, errors.LocalEntryNotFoundError):
        if constants.HF_HUB_OFFLINE:
            return "not in the local cache (offline mode is on)"
        return "not in the local cache, and the hub can't be reached"
    # The HTTP library below, and so its errors, change by version.
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def gguf_file(model: str | Path) -> Path | None:
    """The path of a model named as a GGUF file, else None; ModelLoadError if it is missing."""
    path = Path(model).expanduser()
    if path.suffix.lower() != ".gguf" or path.is_dir():
        return None
    if not path.is_file():
        raise ModelLoadError(f"{path}: no such file")
    return path


def refuse_gguf(model: str | Path) -> None:
    """Raise ModelLoadError, with the fix, for a GGUF file in place of a model directory."""
    if (file := gguf_file(model)) is not None:
        raise ModelLoadError(
            f"{file}: a GGUF file; convert it first: jaxinfer convert {file} DIRECTORY"
        )


def _download(name: str, revision: str | None) -> Path:
    """Fetch a snapshot into Hugging Face's cache, or find it there in offline mode."""
    import huggingface_hub
    from huggingface_hub import errors

    try:
        return Path(
            huggingface_hub.snapshot_download(name, revision=revision, allow_patterns=HUB_FILES)
        )
    except Exception as error:
        cause = hub_cause(error, revision)
        is_gated = isinstance(error, errors.GatedRepoError)
        missing = (errors.RepositoryNotFoundError, errors.LocalEntryNotFoundError)
        if isinstance(error, missing) and not is_gated:
            cause = f"no such directory, and {cause}{_with_owner(name)}"
    raise ModelLoadError(f"{name}: {cause}") from None


def _with_owner(name: str) -> str:
    """The end of a message about a name that has no owner, which ids of the hub begin with."""
    if "/" in name:
        return ""
    hub_id = f", Qwen/{name}" if name.startswith("Qwen") else f" with its owner, OWNER/{name}"
    return f"; give the hub id{hub_id} (`jaxinfer pull` downloads it), or a directory"
