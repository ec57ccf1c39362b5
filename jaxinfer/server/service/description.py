"""The description of an engine for front ends in other processes, and its message form."""

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import msgspec

from jaxinfer.config import EngineConfig
from jaxinfer.model.adapters.adapter import Adapter
from jaxinfer.model.checkpoint.hub import resolve_model
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.score_head import ScoreHead
from jaxinfer.model.text.tokenizer import Tokenizer
from jaxinfer.sampling_params import SamplingParams
from jaxinfer.server.service.limits import ServiceLimits
from jaxinfer.serving.processes.requests import request_to_json
from jaxinfer.serving.requests.exact_params import Exactness
from jaxinfer.serving.requests.new_request import NewRequest, Prompt
from jaxinfer.serving.requests.packed_ids import ID_BYTES, unpack_ids
from jaxinfer.serving.requests.prompts import PromptReader
from jaxinfer.serving.startup.model_files import (
    read_classifier,
    read_model_config,
    read_tokenizer,
)

# Fields that a front end handles itself, or that the engine's process does not need.
_MOST_SHARED_BYTES = 4096
_STAY_OF_REQUEST = ("key", "label", "kind", "capture", "intervene")
_STAY_IN_FRONT_END = {
    *("stop", "output_kind", "detokenize", "skip_special_tokens"),
    *("include_stop_str_in_output", "truncate_prompt_tokens", "timeout"),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class EngineDescription:
    """An engine in another process.

    Attributes:
        max_logprobs: most log-probabilities at a position.
        default_params: sampling parameters of a call that gives none.
        device_kind: as JAX names the devices; empty if unknown.
        devices_of_a_replica: devices that share a model.
        bytes_per_value: of its activations.
    """

    config: EngineConfig
    directory: Path
    max_model_len: int
    max_logprobs: int
    default_params: SamplingParams
    limits: ServiceLimits
    device_kind: str = ""
    devices_of_a_replica: int = 1
    bytes_per_value: int = 2

    def to_message(self) -> dict[str, Any]:
        """Plain values from which `from_message` restores the description."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return values | {
            "config": dataclasses.asdict(self.config),
            "directory": str(self.directory),
            "default_params": changed_fields(self.default_params),
            "limits": dataclasses.asdict(self.limits),
        }

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> "EngineDescription":
        """The inverse of `to_message`."""
        return cls(
            **{
                **message,
                "config": EngineConfig(**message["config"]),
                "directory": Path(message["directory"]),
                "default_params": SamplingParams(**message["default_params"]),
                "limits": ServiceLimits(**message["limits"]),
            }
        )

    def read_tokenizer(self) -> Tokenizer | None:
        """The model's tokenizer, for this process."""
        return read_tokenizer(self.directory, self.config)

    def read_model_config(self) -> ModelConfig:
        """The model's shape."""
        return read_model_config(self.directory, None, self.config)

    def read_classifier(self, model_config: ModelConfig) -> ScoreHead | None:
        """The model's classifying head; None of a language model."""
        return read_classifier(self.directory, model_config, self.config)

    def prompt_reader(self, tokenizer: Tokenizer | None, model_config: ModelConfig) -> PromptReader:
        """A reader that checks prompts as the engine's process would."""
        return PromptReader(
            tokenizer,
            model_config.vocab_size,
            self.max_model_len,
            self.max_logprobs,
            Exactness(self.config.logprobs_mode),
            model_config.max_context_length,
        )


def model_directory(config: EngineConfig) -> Path:
    """The place where an engine of this configuration finds its model."""
    return resolve_model(config.model, config.revision)


def changed_fields(params: SamplingParams) -> dict[str, Any]:
    """Fields that are not at their defaults, as plain values."""
    plain = SamplingParams()
    changed = {name: value for name, value in vars(params).items() if value != getattr(plain, name)}
    if "output_kind" in changed:
        changed["output_kind"] = int(changed["output_kind"])
    if params.structured_outputs is not None:
        changed["structured_outputs"] = params.structured_outputs.to_json()
    return changed


def engine_message(request: NewRequest, before: SamplingParams | None = None) -> dict[str, Any]:
    """A request in message form for the engine's process; text is made in the front end.

    The number of completions stays: the engine's process makes as many requests.

    Args:
        before: parameters of the previous request on the same connection; if they are the same
            object, as for the prompts of one call, they are left out.
    """
    if request.answer is not None:  # the engine reads where thinking begins and ends
        request = dataclasses.replace(request, answer=request.answer.without_schemas())
    prompt: dict[str, Any] = {"packed": request.prompt.packed}
    if request.prompt.cache_salt is not None:
        prompt["cache_salt"] = request.prompt.cache_salt
    if request.prompt.adapter is not None:
        prompt["adapter"] = request.prompt.adapter.name
    message: dict[str, Any] = {"prompt": prompt}
    if request.params is not before:
        params = changed_fields(request.params)
        message["params"] = {name: params[name] for name in params.keys() - _STAY_IN_FRONT_END}
    return request_to_json(request, leave=(*_STAY_OF_REQUEST, "params", "prompt")) | message


def request_of_message(
    message: Mapping[str, Any], before: SamplingParams | None = None
) -> NewRequest:
    """The inverse of `engine_message`, for the fields that the message has.

    Raises:
        TypeError, ValueError: a field is of another type than `NewRequest` has it, or unknown; or
            the message has no parameters, and nor had the request before.
    """
    checked = msgspec.convert(message, _RequestMessage)
    prompt = checked.prompt
    params = before if checked.params is None else _params(checked.params)
    if params is None:
        raise ValueError("the request has no sampling parameters, and there is none before it")
    read = Prompt(unpack_ids(prompt.packed), None, prompt.cache_salt, prompt.packed)
    given = msgspec.structs.asdict(checked) | {
        "prompt": with_adapter_of_name(read, prompt.adapter),
        "params": params,
    }
    return NewRequest(**given)


def with_adapter_of_name(prompt: Prompt, name: str | None) -> Prompt:
    """A prompt that asks for the adapter of this name, which the engine's process has to find."""
    if name is None:
        return prompt
    return dataclasses.replace(prompt, adapter=Adapter(name, 0, None, {}))


class _PromptMessage(msgspec.Struct, forbid_unknown_fields=True):
    packed: Annotated[bytes, msgspec.Meta(min_length=ID_BYTES)]
    cache_salt: str | None = None
    adapter: str | None = None


# The other fields that travel have the types and defaults of `NewRequest`.
_RequestMessage: Any = msgspec.defstruct(
    "_RequestMessage",
    [
        ("prompt", _PromptMessage),
        ("params", dict[str, Any] | None, None),
        *(
            (field.name, get_type_hints(NewRequest)[field.name], field.default)
            for field in dataclasses.fields(NewRequest)
            if field.name not in ("prompt", "params", "sink", *_STAY_OF_REQUEST)
        ),
    ],
    forbid_unknown_fields=True,
)


def _params(fields: Mapping[str, Any]) -> SamplingParams:
    encoded = msgspec.msgpack.encode(fields)
    # Large ones, such as those with a grammar, hardly ever repeat and are not worth their memory.
    return (
        _shared_params(encoded) if len(encoded) <= _MOST_SHARED_BYTES else SamplingParams(**fields)
    )


@functools.lru_cache(maxsize=256)
def _shared_params(encoded: bytes) -> SamplingParams:
    """Sampling parameters from their encoding; cached, so they must not be modified."""
    return SamplingParams(**msgspec.msgpack.decode(encoded))
