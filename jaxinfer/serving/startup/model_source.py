"""A caller's own arrays, mesh and functions for an engine, checked."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol

from jax.sharding import Mesh
from jax.typing import DTypeLike

from jaxinfer.config import EngineConfig
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.sharding import ShardingRules
from jaxinfer.model.stages.staged_params import make_pipeline_mesh
from jaxinfer.model.text.tokenizer import Tokenizer
from jaxinfer.serving.inspection.inspection import NO_INSPECTION, Inspection
from jaxinfer.serving.sampling.sampler import CustomSampler, LogitsProcessor


class ParamsMaker(Protocol):
    """Makes the engine's parameters from a trainer's, which have other names or shapes."""

    def describe(self) -> dict[str, str]:
        """Properties that determine the conversion program, for several processes to compare."""
        ...

    def make(
        self, config: ModelConfig, dtype: DTypeLike | None, mesh: Mesh | None, rules: ShardingRules
    ) -> dict[str, Any]:
        """New parameters; a dtype of None is the trainer's."""
        ...


@dataclasses.dataclass(frozen=True)
class ModelSource:
    """A caller's own parts of a model, instead of a model directory or beside it.

    Attributes:
        params: the caller's own arrays; None loads the weights of `EngineConfig.model`.
        maker: converts them, in `made`; None uses them as they are.
        owns_params: whether `params` were made for this engine, which alone holds them.
        model_config: goes with `params`.
        tokenizer: a tokenizer object; None takes the one of `EngineConfig`, if there is a
            directory.
        mesh: the devices; None makes a mesh of `tensor_parallel_size` devices for each replica.
        rules: the sharding of the model over the devices.
        logits_processor: see `check_logits_processor`.
        sampler: see `check_sampler`.
        inspection: what is read and changed of activations.
    """

    params: Mapping[str, Any] | None = None
    maker: ParamsMaker | None = None
    owns_params: bool = False
    model_config: ModelConfig | None = None
    tokenizer: Tokenizer | None = None
    mesh: Mesh | None = None
    rules: ShardingRules = dataclasses.field(default_factory=ShardingRules)
    logits_processor: LogitsProcessor | None = None
    sampler: CustomSampler | None = None
    inspection: Inspection = NO_INSPECTION

    def describe(self) -> dict[str, str]:
        """The maker's description (see `ParamsMaker.describe`), or an empty one."""
        return {} if self.maker is None else self.maker.describe()

    def made(self, config: EngineConfig) -> "ModelSource":
        """This source with the maker's parameters, if there is a maker.

        Raises:
            TypeError, ValueError: the caller's arrays don't give this model's parameters.
        """
        if self.maker is None or self.model_config is None:
            return self
        dtype = None if config.dtype == "auto" else config.dtype
        mesh, stages = self.mesh, config.pipeline_parallel_size
        if mesh is None and stages > 1:
            mesh = make_pipeline_mesh(stages, config.tensor_parallel_size)
        params = self.maker.make(self.model_config, dtype, mesh, self.rules)
        return dataclasses.replace(self, params=params, maker=None, owns_params=True)


def check_given(model: Any, params: Any, config: Any, mesh: Any, rules: Any) -> None:
    """Check the arguments of an engine that are objects, not text or numbers.

    Raises:
        TypeError: one has the wrong type; names it.
        ValueError: two contradict each other.
    """
    for name, value, kind, hint in (
        ("params", params, Mapping, "; a directory is given as model"),
        ("config", config, ModelConfig, "; ModelConfig.from_directory(...) reads one"),
        ("mesh", mesh, Mesh, "; jaxinfer.make_mesh(...) makes one"),
        ("rules", rules, ShardingRules, ""),
    ):
        if value is not None and not isinstance(value, kind):
            wanted, given = kind.__name__, type(value).__name__
            raise TypeError(f"{name} must be a {wanted}, got {given}{hint}")
    if params is not None and model is not None:
        raise ValueError("give either model or params, not both")
    if (params is None) != (config is None):
        raise ValueError("params and config go together: give both or neither")
