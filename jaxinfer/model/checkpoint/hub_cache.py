"""Models in Hugging Face's local cache: what is there, what an engine runs, and their removal."""

import dataclasses
import difflib
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxinfer.errors import ModelLoadError
from jaxinfer.model.checkpoint.hub import refuse_bundled
from jaxinfer.model.checkpoint.weight_files import tensor_entries
from jaxinfer.model.hf_overrides import decoder_config


@dataclass(frozen=True)
class CachedModel:
    """A revision of a model in the cache.

    Attributes:
        refs: branches and tags that name it; they may be none.
        num_bytes: size of its files; revisions may share some.
        last_used: when one of its files was last read, in seconds since 1970, as far as the file
            system keeps such times.
        family: the family that runs it; None if none does.
        obstacle: why none runs it; None if one does.
    """

    name: str
    commit: str
    refs: tuple[str, ...]
    num_bytes: int
    last_used: float
    directory: Path
    family: str | None
    obstacle: str | None


@dataclass(frozen=True)
class Removal:
    """What is to be removed from the cache.

    Attributes:
        commits: of the revisions; empty for what a broken download left.
        num_bytes: what it frees.
    """

    name: str
    commits: tuple[str, ...]
    num_bytes: int
    _strategy: Any
    _directories: tuple[Path, ...]

    def execute(self) -> None:
        """Remove it; ModelLoadError if something of it can't be removed."""
        if self._strategy is not None:
            self._strategy.execute()  # logs what fails
        else:
            shutil.rmtree(self._directories[0], ignore_errors=True)
        left = [str(directory) for directory in self._directories if directory.exists()]
        if left:
            raise ModelLoadError(f"{self.name}: can't remove all of {left[0]}; is it yours?")


def cached_models() -> list[CachedModel]:
    """All revisions of models in the cache, by name and then the last used first."""
    repositories = [repository for repository in _scan()[1] if repository.repo_type == "model"]
    models = [_cached(each, revision) for each in repositories for revision in each.revisions]
    return sorted(models, key=lambda model: (model.name.lower(), -model.last_used, model.commit))


def broken_models() -> list[str]:
    """Names of models of which the cache holds no usable revision, as a cut download leaves."""
    known = {each.repo_id for each in _scan()[1] if each.repo_type == "model"}
    return sorted(_folders().keys() - known)


def find_removal(name: str, revision: str | None = None) -> Removal:
    """What removing a model, or one revision of it, would remove.

    Args:
        revision: a branch, a tag, or a commit or its beginning; None is all of the model.

    Raises:
        ModelLoadError: the cache has no such model or revision; names the nearest ones.
    """
    refuse_bundled(name)
    info, repositories = _scan()
    models = {each.repo_id: each for each in repositories if each.repo_type == "model"}
    repository = models.get(name)
    if repository is None:
        folder = _folders().get(name)
        if folder is None:
            raise ModelLoadError(f"{name}: not in the local cache{_nearest(name, _folders())}")
        if revision is not None:
            raise ModelLoadError(f"{name}: the cache holds no revision of it; leave --revision out")
        size = sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())
        return Removal(name, (), size, None, (folder,))
    revisions = _revisions(repository, revision)
    commits = tuple(sorted(each.commit_hash for each in revisions))
    # Other repositories may have the same commits, as copies of one do.
    own = dataclasses.replace(info, repos=frozenset({repository}))
    strategy = own.delete_revisions(*commits)
    directories = tuple(each.snapshot_path for each in revisions)
    return Removal(name, commits, strategy.expected_freed_size, strategy, directories)


def _revisions(repository: Any, revision: str | None) -> list[Any]:
    if revision is None:
        return list(repository.revisions)
    found = [each for each in repository.revisions if revision in each.refs]
    if not found and revision:
        found = [each for each in repository.revisions if each.commit_hash.startswith(revision)]
    if len(found) == 1:
        return found
    names = sorted({n for each in repository.revisions for n in (*each.refs, each.commit_hash)})
    which = "no revision" if not found else "several revisions"
    holds = f"the cache holds {which} {revision!r:.120}; it has {', '.join(names)}"
    raise ModelLoadError(f"{repository.repo_id}: {holds}")


def _scan() -> tuple[Any, list[Any]]:
    """What huggingface_hub finds in the cache; without a cache nothing."""
    import huggingface_hub
    from huggingface_hub import constants, errors

    try:
        info = huggingface_hub.scan_cache_dir(constants.HF_HUB_CACHE)
    except errors.CacheNotFound:
        return None, []
    return info, list(info.repos)


def _folders() -> dict[str, Path]:
    """The cache's folders of models, sound or not, by hub id."""
    from huggingface_hub import constants

    cache = Path(constants.HF_HUB_CACHE).expanduser()
    found = cache.glob("models--*") if cache.is_dir() else ()
    return {
        folder.name.removeprefix("models--").replace("--", "/"): folder
        for folder in found
        if folder.is_dir() and not folder.is_symlink()
    }


def _nearest(name: str, known: dict[str, Path]) -> str:
    """The end of a message: the cached names that are most like a given one."""
    if not known:
        return ", which has no models"
    by_lower = {each.lower(): each for each in known}
    short = {each.split("/")[-1]: by_lower[each] for each in by_lower}
    wanted = name.lower()
    likely = [by_lower[each] for each in difflib.get_close_matches(wanted, by_lower)]
    likely += [short[each] for each in difflib.get_close_matches(wanted.split("/")[-1], short)]
    if likely:
        return f"; did you mean {' or '.join(dict.fromkeys(likely))}?"
    return "; `jaxinfer list` shows what is"


def _cached(repository: Any, revision: Any) -> CachedModel:
    family, obstacle = _family(revision.snapshot_path)
    times = [file.blob_last_accessed for file in revision.files]
    return CachedModel(
        name=repository.repo_id,
        commit=revision.commit_hash,
        refs=tuple(sorted(revision.refs)),
        num_bytes=revision.size_on_disk,
        last_used=max(times, default=revision.last_modified),
        directory=revision.snapshot_path,
        family=family,
        obstacle=obstacle,
    )


def _family(directory: Path) -> tuple[str | None, str | None]:
    """The family that runs a snapshot, or why none does."""
    try:
        config = decoder_config(directory / "config.json")
        tensor_entries(directory)
    except ModelLoadError as error:
        text = str(error).replace(f"{directory}/", "").removeprefix(f"{directory}: ")
        return None, text.removeprefix("config.json: ")
    return config.model_type, None
