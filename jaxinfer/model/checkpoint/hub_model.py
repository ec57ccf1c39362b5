"""A model on the Hugging Face hub: its size and licence, checks before a download, the download."""

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxinfer.errors import ModelLoadError
from jaxinfer.model.checkpoint.byte_sizes import size_text
from jaxinfer.model.checkpoint.directory_files import is_pickle
from jaxinfer.model.checkpoint.hub import HUB_FILES, hub_cause, is_hub_id, refuse_bundled
from jaxinfer.model.checkpoint.weight_files import INDEX_FILE, SINGLE_FILE
from jaxinfer.model.hf_overrides import decoder_config


@dataclass(frozen=True)
class HubFile:
    """A file of a model on the hub."""

    name: str
    num_bytes: int
    is_cached: bool


@dataclass(frozen=True)
class HubModel:
    """A revision of a model, as the hub describes it.

    Attributes:
        name: the hub id, such as "Qwen/Qwen3-0.6B".
        revision: the branch, tag or commit that was asked for; None is the main branch.
        licence: by the model card, such as "apache-2.0"; None if the card names none.
        files: those that an engine reads.
        others: names of all other files.
    """

    name: str
    revision: str | None
    commit: str
    licence: str | None
    files: tuple[HubFile, ...]
    others: tuple[str, ...]

    @property
    def num_bytes(self) -> int:
        """Size of the files that an engine reads."""
        return sum(file.num_bytes for file in self.files)

    @property
    def missing(self) -> tuple[HubFile, ...]:
        """Files that a download has to fetch."""
        return tuple(file for file in self.files if not file.is_cached)

    @property
    def missing_bytes(self) -> int:
        """Size of the files that a download has to fetch."""
        return sum(file.num_bytes for file in self.missing)


def find_on_hub(name: str, revision: str | None = None) -> HubModel:
    """Ask the hub about a model; no file is downloaded.

    Args:
        revision: branch, tag or commit; None is the main branch.

    Raises:
        ModelLoadError: there is none, it can't be seen, the hub can't be reached, or offline mode
            is on; one line.
    """
    import huggingface_hub
    from huggingface_hub import constants, errors
    from huggingface_hub.utils import filter_repo_objects

    refuse_bundled(name)
    if not is_hub_id(name):
        raise ModelLoadError(f"{name!r:.120} is not a hub id; write one like Qwen/Qwen3-0.6B")
    if constants.HF_HUB_OFFLINE:
        raise ModelLoadError(f"{name}: offline mode is on; unset HF_HUB_OFFLINE to download it")
    try:
        info = huggingface_hub.HfApi().model_info(name, revision=revision, files_metadata=True)
    except (errors.HfHubHTTPError, errors.HFValidationError) as error:
        raise ModelLoadError(f"{name}: {hub_cause(error, revision)}") from None
    except Exception as error:  # the HTTP library's own
        cause = hub_cause(error, revision)
        raise ModelLoadError(f"{name}: can't reach {constants.ENDPOINT} ({cause})") from None
    siblings = {sibling.rfilename: sibling for sibling in info.siblings or ()}
    read = set(filter_repo_objects(siblings, allow_patterns=HUB_FILES))
    commit = info.sha or ""
    return HubModel(
        name=name,
        revision=revision,
        commit=commit,
        licence=_licence(info.card_data),
        files=tuple(_hub_file(name, commit, siblings[each]) for each in sorted(read)),
        others=tuple(sorted(siblings.keys() - read)),
    )


def check_runs(model: HubModel) -> str:
    """The name of the family that runs a model; fetches config.json alone, and not into the cache.

    Raises:
        ModelLoadError: no family runs it, it has no safetensors, or its files can't be read by
            this user; one line.
    """
    import huggingface_hub

    names = {file.name for file in model.files}
    if "config.json" not in names:
        raise ModelLoadError(f"{model.name}: has no config.json, so that no family can run it")
    if not names & {SINGLE_FILE, INDEX_FILE}:
        raise ModelLoadError(f"{model.name}: has no {SINGLE_FILE} or {INDEX_FILE}{_instead(model)}")
    with tempfile.TemporaryDirectory() as directory, _no_progress_bars():
        try:
            huggingface_hub.hf_hub_download(
                model.name, "config.json", revision=model.commit, local_dir=directory
            )
        except Exception as error:
            cause = hub_cause(error, model.revision)
            raise ModelLoadError(f"{model.name}: {cause}") from None
        try:
            return decoder_config(Path(directory) / "config.json").model_type
        except ModelLoadError as error:
            cause = str(error).removeprefix(str(Path(directory) / "config.json")).lstrip(": ")
            raise ModelLoadError(
                f"{model.name}: no family runs it: {cause}; nothing was downloaded"
            ) from None


def check_disk_space(model: HubModel) -> None:
    """Raise ModelLoadError if the disk of the cache has too little room for what is fetched."""
    from huggingface_hub import constants

    cache = Path(constants.HF_HUB_CACHE).expanduser().absolute()
    place = next(path for path in (cache, *cache.parents) if path.exists())
    free = shutil.disk_usage(place).free
    if model.missing_bytes > free:
        raise ModelLoadError(
            f"{model.name}: needs {size_text(model.missing_bytes)}, and {size_text(free)} are free "
            f"on the disk of {cache}; free some, or set HF_HOME to a directory on another disk"
        )


def download(model: HubModel, fetches: Callable[[HubFile], None] = lambda _: None) -> Path:
    """Fetch a model's missing files into Hugging Face's cache; `fetches` is told of each before.

    The branch or tag of the cache moves to the new commit only when all files are there, so that
    until then an older snapshot is found by its name.

    Raises:
        ModelLoadError: a file can't be had, or not be written; one line.
    """
    import huggingface_hub

    try:
        for file in model.missing:
            fetches(file)
            # In this thread: in one of a pool it would go on after Ctrl-C, to the end of its file.
            huggingface_hub.hf_hub_download(model.name, file.name, revision=model.commit)
        with _no_progress_bars():  # all files are there
            snapshot = huggingface_hub.snapshot_download(
                model.name, revision=model.revision, allow_patterns=HUB_FILES
            )
        return Path(snapshot)
    except Exception as error:
        cause = hub_cause(error, model.revision)
    raise ModelLoadError(
        f"{model.name}: {cause}; files that are complete are kept for the next attempt"
    ) from None


@contextlib.contextmanager
def _no_progress_bars() -> Iterator[None]:
    """Within it huggingface_hub shows no progress: of small files, and of none."""
    from huggingface_hub import utils

    if utils.are_progress_bars_disabled():
        yield
        return
    utils.disable_progress_bars()
    try:
        yield
    finally:
        utils.enable_progress_bars()


def _licence(card: Any) -> str | None:
    """The licence that a model card names; a list, or one of its own, by its name."""
    if card is None:
        return None
    value = card.get("license")
    if value == "other":
        value = card.get("license_name") or value
    if isinstance(value, list):
        value = ", ".join(map(str, value))
    return " ".join(str(value).split()) if value else None


def _hub_file(name: str, commit: str, sibling: Any) -> HubFile:
    """A file of `name`; its content is in the cache under its hash, whatever snapshot it is of."""
    import huggingface_hub
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    found = huggingface_hub.try_to_load_from_cache(name, sibling.rfilename, revision=commit)
    digest = sibling.blob_id if sibling.lfs is None else sibling.lfs.sha256
    repository = Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=name, repo_type="model")
    blob = repository / "blobs" / str(digest)
    is_cached = isinstance(found, str) or blob.is_file()
    return HubFile(sibling.rfilename, sibling.size or 0, is_cached)


def _instead(model: HubModel) -> str:
    """What a model has in the place of safetensors."""
    pickles = [name for name in model.others if is_pickle(name)]
    if pickles:
        return f"; pickled weights ({pickles[0]}) are never loaded"
    ggufs = [name for name in model.others if name.endswith(".gguf")]
    return f"; GGUF files ({ggufs[0]}) are not read" if ggufs else ""
