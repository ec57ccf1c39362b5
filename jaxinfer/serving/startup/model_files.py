"""Reads a model's directory beside its weights: shape, tokenizer, sampling defaults, end tokens."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxinfer.config import EngineConfig
from jaxinfer.model.checkpoint.hub import resolve_model
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.generation_config import GenerationConfig
from jaxinfer.model.hf_config import read_config_file
from jaxinfer.model.hf_overrides import apply_overrides, backbone_config
from jaxinfer.model.quantized.quantization import with_scheme
from jaxinfer.model.score_head import ScoreHead, read_score_head
from jaxinfer.model.text.tokenizer import Tokenizer


def read_model_config(
    directory: Path | None, given: ModelConfig | None, config: EngineConfig
) -> ModelConfig:
    """The model's shape, from its config.json and `hf_overrides`, or as it was given.

    Raises:
        ModelLoadError: the file can't be read, or describes no model that can be run.
        ValueError: arguments contradict it or each other.
    """
    if directory is None:
        if config.hf_overrides is not None:
            raise ValueError(
                "hf_overrides changes a config.json, and params come without one; leave it out and "
                "give config=ModelConfig(...) with the changed fields"
            )
        if given is None:
            raise ValueError("params need config=ModelConfig(...) beside them")
        model_config = given
    else:
        mapping, source = _config_object(directory, config)
        if config.runner == "pooling":
            mapping = backbone_config(mapping)
        model_config = ModelConfig.from_hf(mapping, source)
        if config.quantization is not None:
            model_config = with_scheme(model_config, config.quantization)
    experts = model_config.experts
    has_experts = experts is not None and experts.layers(model_config.num_hidden_layers)
    if config.expert_statistics and not has_experts:
        raise ValueError(
            f"expert_statistics counts the tokens of experts, and this {model_config.model_type} "
            "model has none; leave it out"
        )
    if config.enable_lora and has_experts:
        raise ValueError(
            "enable_lora adapts dense layers, and this model's are experts; leave it out, or merge "
            "the adapter into the weights"
        )
    longest = model_config.max_context_length
    if config.max_model_len is not None and config.max_model_len > longest:
        raise ValueError(
            f"max_model_len {config.max_model_len} is more than the model's "
            f"longest context, {longest}; lower it, or extend the model by YaRN "
            "(rope_scaling in its config.json, or in hf_overrides)"
        )
    return model_config.for_context(config.max_model_len)


def read_classifier(
    directory: Path | None, model_config: ModelConfig, config: EngineConfig
) -> ScoreHead | None:
    """The classifying head that an engine for pooling scores with; None for a language model.

    Raises:
        ModelLoadError: as of `read_score_head`.
    """
    if directory is None or config.runner != "pooling":
        return None
    mapping, _ = _config_object(directory, config)
    return read_score_head(directory, mapping, model_config.hidden_size)


def read_tokenizer(directory: Path | None, config: EngineConfig) -> Tokenizer | None:
    """The tokenizer of `config`, or else of the model; None if only token ids go in and out."""
    if config.skip_tokenizer_init:
        return None
    if config.tokenizer is not None:
        return Tokenizer.from_directory(resolve_model(config.tokenizer, config.revision))
    return None if directory is None else Tokenizer.from_directory(directory)


def read_generation_config(directory: Path | None, tokenizer: Tokenizer | None) -> GenerationConfig:
    """The sampling defaults of the model's authors; a tokenizer's, without a directory."""
    if directory is not None:
        return GenerationConfig.from_directory(directory)
    return GenerationConfig() if tokenizer is None else tokenizer.generation


def usable_eos_token_ids(
    model_config: ModelConfig, generation: GenerationConfig, tokenizer: Tokenizer | None
) -> tuple[int, ...]:
    """Ids that end an answer according to any of a model's files, if the model can produce them."""
    of_tokenizer = () if tokenizer is None else tokenizer.eos_token_ids
    named = dict.fromkeys((*generation.eos_token_ids, *of_tokenizer, *model_config.eos_token_ids))
    return tuple(token_id for token_id in named if token_id < model_config.vocab_size)


def _config_object(directory: Path, config: EngineConfig) -> tuple[Mapping[str, Any], str]:
    """The object of config.json with `hf_overrides`, and its name for messages."""
    file = directory / "config.json"
    mapping = read_config_file(file)
    if config.hf_overrides is None:
        return mapping, str(file)
    return apply_overrides(mapping, config.hf_overrides), f"{file} with hf_overrides"
