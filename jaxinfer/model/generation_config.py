"""A model's recommended sampling parameters, read from generation_config.json."""

import dataclasses
import json
import pathlib
from typing import Any

from jaxinfer.errors import ModelLoadError

_MAX_JSON_BYTES = 1 << 26


def read_json(path: pathlib.Path) -> dict[str, Any]:
    """The JSON object in a file; empty when there is no such file.

    Raises:
        ModelLoadError: the file is not a JSON object; one line that names it.
    """
    if not path.is_file():
        return {}
    if path.stat().st_size > _MAX_JSON_BYTES:
        raise ModelLoadError(f"{path}: larger than {_MAX_JSON_BYTES >> 20} MiB")
    try:
        value = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ModelLoadError(f"{path}: not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ModelLoadError(f"{path}: must be a JSON object, is a {type(value).__name__}")
    return value


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
        values = read_json(path)
        return cls(_eos_ids(path, values.get("eos_token_id")), values, str(path))


def _eos_ids(path: pathlib.Path, value: Any) -> tuple[int, ...]:
    ids = value if isinstance(value, list) else [] if value is None else [value]
    for token_id in ids:
        if isinstance(token_id, bool) or not isinstance(token_id, int) or token_id < 0:
            raise ModelLoadError(f"{path}: eos_token_id must be token ids, got {value!r}")
    return tuple(ids)
