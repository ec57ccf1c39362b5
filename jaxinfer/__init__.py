"""jaxinfer: a small paged LLM inference engine for Qwen3, Llama and other dense models in JAX.

The public names are imported when first used, so that `import jaxinfer` costs milliseconds and a
command can print its help without loading JAX.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxinfer.beam_search import BeamSearchOutput, BeamSearchParams, BeamSearchSequence
    from jaxinfer.capture import Capture
    from jaxinfer.config import EngineConfig
    from jaxinfer.decisions import Decision
    from jaxinfer.errors import (
        AdapterNotFoundError,
        CapacityError,
        DistributedError,
        EngineDeadError,
        EngineRestartingError,
        EngineUnavailableError,
        JaxinferError,
        MissingPackageError,
        ModelLoadError,
        PromptTooLongError,
        QueueFullError,
        ShuttingDownError,
        StepError,
    )
    from jaxinfer.expert_statistics import ExpertStatistics, RebalancedExperts
    from jaxinfer.inputs import TextPrompt, TokensPrompt
    from jaxinfer.logprobs import ChosenLogprobs, Logprob, Support
    from jaxinfer.model.adapters.lora_request import LoRARequest
    from jaxinfer.model.architecture import abstract_params, init_params
    from jaxinfer.model.checkpoint.weights import load_params, save_params
    from jaxinfer.model.config import ModelConfig
    from jaxinfer.model.forward import forward
    from jaxinfer.model.intervention import Intervention
    from jaxinfer.model.quantized.quantization import Quantization
    from jaxinfer.model.sharding import ShardingRules, make_mesh
    from jaxinfer.model.text.tokenizer import Tokenizer
    from jaxinfer.outputs import (
        CompletionOutput,
        EmbeddingOutput,
        RequestMetrics,
        RequestOutput,
        ScoreOutput,
    )
    from jaxinfer.profiling.host_time import StepTime
    from jaxinfer.profiling.memory.report import MemoryReport
    from jaxinfer.profiling.report import ProfileReport
    from jaxinfer.profiling.schedule import ProfileSchedule
    from jaxinfer.reranking import PairScore, RankedDocument
    from jaxinfer.rollouts.arrays import FinishCode, PackedRollouts, Rollouts
    from jaxinfer.rollouts.mapping import ParamsMapping
    from jaxinfer.rollouts.sources import ParamSource
    from jaxinfer.sampling_params import RequestOutputKind, SamplingParams
    from jaxinfer.serving.async_llm import AsyncLLM
    from jaxinfer.serving.engine.metrics import Counter, Gauge, Histogram
    from jaxinfer.serving.llm import LLM
    from jaxinfer.serving.parsers.answer_format import AnswerFormat
    from jaxinfer.serving.pooling.embedding_model import EmbeddingModel
    from jaxinfer.serving.sampling.sampler import CustomSampler, LogitsProcessor, SamplerState
    from jaxinfer.startup_report import StartupReport, StartUpTimes
    from jaxinfer.structured_outputs import StructuredOutputsParams

__version__ = "0.2.0"

__all__ = [
    "LLM",
    "AdapterNotFoundError",
    "AnswerFormat",
    "AsyncLLM",
    "BeamSearchOutput",
    "BeamSearchParams",
    "BeamSearchSequence",
    "CapacityError",
    "Capture",
    "ChosenLogprobs",
    "CompletionOutput",
    "Counter",
    "CustomSampler",
    "Decision",
    "DistributedError",
    "EmbeddingModel",
    "EmbeddingOutput",
    "EngineConfig",
    "EngineDeadError",
    "EngineRestartingError",
    "EngineUnavailableError",
    "ExpertStatistics",
    "FinishCode",
    "Gauge",
    "Histogram",
    "Intervention",
    "JaxinferError",
    "LoRARequest",
    "LogitsProcessor",
    "Logprob",
    "MemoryReport",
    "MissingPackageError",
    "ModelConfig",
    "ModelLoadError",
    "PackedRollouts",
    "PairScore",
    "ParamSource",
    "ParamsMapping",
    "ProfileReport",
    "ProfileSchedule",
    "PromptTooLongError",
    "Quantization",
    "QueueFullError",
    "RankedDocument",
    "RebalancedExperts",
    "RequestMetrics",
    "RequestOutput",
    "RequestOutputKind",
    "Rollouts",
    "SamplerState",
    "SamplingParams",
    "ScoreOutput",
    "ShardingRules",
    "ShuttingDownError",
    "StartUpTimes",
    "StartupReport",
    "StepError",
    "StepTime",
    "StructuredOutputsParams",
    "Support",
    "TextPrompt",
    "Tokenizer",
    "TokensPrompt",
    "__version__",
    "abstract_params",
    "forward",
    "init_params",
    "load_params",
    "make_mesh",
    "save_params",
]

_NAMES_OF = {
    "beam_search": ("BeamSearchOutput", "BeamSearchParams", "BeamSearchSequence"),
    "capture": ("Capture",),
    "config": ("EngineConfig",),
    "decisions": ("Decision",),
    "errors": (
        "AdapterNotFoundError",
        "CapacityError",
        "DistributedError",
        "EngineDeadError",
        "EngineRestartingError",
        "EngineUnavailableError",
        "JaxinferError",
        "MissingPackageError",
        "ModelLoadError",
        "PromptTooLongError",
        "QueueFullError",
        "ShuttingDownError",
        "StepError",
    ),
    "expert_statistics": ("ExpertStatistics", "RebalancedExperts"),
    "inputs": ("TextPrompt", "TokensPrompt"),
    "logprobs": ("ChosenLogprobs", "Logprob", "Support"),
    "model.adapters.lora_request": ("LoRARequest",),
    "model.architecture": ("abstract_params", "init_params"),
    "model.checkpoint.weights": ("load_params", "save_params"),
    "model.config": ("ModelConfig",),
    "model.forward": ("forward",),
    "model.intervention": ("Intervention",),
    "model.quantized.quantization": ("Quantization",),
    "model.sharding": ("ShardingRules", "make_mesh"),
    "model.text.tokenizer": ("Tokenizer",),
    "outputs": (
        "CompletionOutput",
        "EmbeddingOutput",
        "RequestMetrics",
        "RequestOutput",
        "ScoreOutput",
    ),
    "profiling.host_time": ("StepTime",),
    "profiling.memory.report": ("MemoryReport",),
    "profiling.report": ("ProfileReport",),
    "profiling.schedule": ("ProfileSchedule",),
    "reranking": ("PairScore", "RankedDocument"),
    "rollouts.arrays": ("FinishCode", "PackedRollouts", "Rollouts"),
    "rollouts.mapping": ("ParamsMapping",),
    "rollouts.sources": ("ParamSource",),
    "sampling_params": ("RequestOutputKind", "SamplingParams"),
    "serving.async_llm": ("AsyncLLM",),
    "serving.engine.metrics": ("Counter", "Gauge", "Histogram"),
    "serving.llm": ("LLM",),
    "serving.parsers.answer_format": ("AnswerFormat",),
    "serving.pooling.embedding_model": ("EmbeddingModel",),
    "serving.sampling.sampler": ("CustomSampler", "LogitsProcessor", "SamplerState"),
    "startup_report": ("StartUpTimes", "StartupReport"),
    "structured_outputs": ("StructuredOutputsParams",),
}
"""Public names, by the module below this package that defines them."""
_HOMES = {name: home for home, names in _NAMES_OF.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a public name from its home at first use."""
    if name not in _HOMES:
        from jaxinfer.checks import instead_of_vllm

        instead = instead_of_vllm("package").get(name)
        hint = "" if instead is None else f": {instead}"
        raise AttributeError(f"module 'jaxinfer' has no attribute {name!r}{hint}")
    value = getattr(importlib.import_module(f"jaxinfer.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
