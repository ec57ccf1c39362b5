"""A model's recommended sampling parameters, read from generation_config.json."""

import dataclasses
import pathlib
from typing import Any

from jaxinfer.errors import ModelLoadError
from jaxinfer.model.checkpoint.directory_files import has_file, read_json

_MAX_JSON_BYTES = 1 << 24


def read_optional_json(directory: pathlib.Path, name: str) -> dict[str, Any]:
    """The JSON object in a file of a model directory; empty when there is no such file.

    Raises:
        ModelLoadError: the file can't be read or is not a JSON object; one line that names it.
    """
    if not has_file(directory, name):
        return {}
    return read_json(directory, name, _MAX_JSON_BYTES)


@dataclasses.dataclass(frozen=True)
class GenerationConfig:
    """The content of `generation_config.json`.

    Attributes:
        eos_token_ids: ids that end an answer.
        values: the file's content, for `SamplingParams.from_generation_config`; empty without one.
        origin: the file, named in error messages.
    """

    eos_token_ids: tuple[int, ...] = ()
    values: dict[str, Any] = dataclasses.field(default_factory=dict)
    origin: str = "generation_config.json"

    @classmethod
    def from_directory(cls, directory: pathlib.Path) -> "GenerationConfig":
        """Read a model directory's `generation_config.json`; empty when there is none.

        Raises:
            ModelLoadError: the file is damaged; one line that names it.
        """
        path = directory / "generation_config.json"
        values = read_optional_json(directory, path.name)
        return cls(_eos_ids(path, values.get("eos_token_id")), values, str(path))


def _eos_ids(path: pathlib.Path, value: Any) -> tuple[int, ...]:
    ids = value if isinstance(value, list) else [] if value is None else [value]
    for token_id in ids:
        if isinstance(token_id, bool) or not isinstance(token_id, int) or token_id < 0:
            raise ModelLoadError(f"{path}: eos_token_id must be token ids, got {value!r}")
    return tuple(ids)
