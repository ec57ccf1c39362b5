"""Starts an engine from what `LLM` and `AsyncLLM` are given."""

from pathlib import Path
from typing import Any

from jax.sharding import Mesh

from jaxinfer.capture import Capture
from jaxinfer.config import EngineConfig
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.intervention import Intervention, InterventionFunction
from jaxinfer.model.quantized.quantization import with_scheme
from jaxinfer.model.sharding import ShardingRules
from jaxinfer.model.text.tokenizer import Tokenizer
from jaxinfer.rollouts.conversion import MappedParams
from jaxinfer.rollouts.mapping import ParamsMapping, check_mapping, quantizing_mapping
from jaxinfer.rollouts.trees import leaves_by_path, nested
from jaxinfer.serving.compile.jax_settings import JaxSettings
from jaxinfer.serving.driver.live_drivers import wait_for_closing
from jaxinfer.serving.handle import Handle
from jaxinfer.serving.inspection.inspection import read_inspection
from jaxinfer.serving.processes.start import start_processes
from jaxinfer.serving.sampling.sampler import CustomSampler, LogitsProcessor
from jaxinfer.serving.startup.loading import load_engine
from jaxinfer.serving.startup.model_source import ModelSource, check_given

_OWN_KEYWORDS = (
    *("params", "mapping", "config", "mesh", "rules", "logits_processor", "sampler"),
    *("capture", "intervention"),
    *("coordinator_address", "num_processes", "process_id"),
)


def start_handle(
    owner: str,
    model: str | Path | None = None,
    *,
    params: Any = None,
    mapping: ParamsMapping | None = None,
    config: ModelConfig | None = None,
    tokenizer: Tokenizer | str | Path | None = None,
    mesh: Mesh | None = None,
    rules: ShardingRules | None = None,
    logits_processor: LogitsProcessor | None = None,
    sampler: CustomSampler | None = None,
    capture: Capture | None = None,
    intervention: Intervention | InterventionFunction | None = None,
    coordinator_address: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    **engine_args: Any,
) -> Handle:
    """A running engine, as `LLM` takes its arguments and raises; messages name its `owner`."""
    check_mapping(mapping)
    if mapping is not None and (params is None or config is None):
        raise ValueError("mapping goes with params and config: it is how params become those")
    given, leaves = params, {}
    if params is not None:
        leaves = leaves_by_path(params)
        params = nested(leaves)
    check_given(model, params, config, mesh, rules)
    inspection = read_inspection(capture, intervention)
    if config is not None and (scheme := engine_args.get("quantization")) is not None:
        config = with_scheme(config, scheme)
    if mapping is None and config is not None:
        mapping = quantizing_mapping(leaves, config)
    maker = None if mapping is None else MappedParams(given, mapping)
    own = tokenizer if isinstance(tokenizer, Tokenizer) else None
    if own is not None and engine_args.get("skip_tokenizer_init"):
        raise ValueError("skip_tokenizer_init and tokenizer exclude each other; leave one out")
    keywords = {
        "model": None if model is None else str(model),
        "tokenizer": None if tokenizer is None or own is not None else str(tokenizer),
        **engine_args,
    }
    checked = EngineConfig.from_keywords(keywords, owner=owner, also=_OWN_KEYWORDS)
    wait_for_closing()  # their memory is this engine's
    start_processes(coordinator_address, num_processes, process_id)
    source = ModelSource(
        params=params,
        maker=maker,
        model_config=config,
        tokenizer=own,
        mesh=mesh,
        rules=rules or ShardingRules(),
        logits_processor=logits_processor,
        sampler=sampler,
        inspection=inspection,
    )
    settings = JaxSettings.here()
    with settings.held():
        loaded = load_engine(checked, source)
    return Handle(owner, checked, loaded, settings, close_tokenizer=own is None)
