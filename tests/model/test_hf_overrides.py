"""Overrides of config.json: what is overridden wins, and what would be ignored is refused."""

import pytest

from jaxinfer import LLM
from jaxinfer.errors import ModelLoadError
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.hf_overrides import apply_overrides
from tests.serving.small_llm import CONFIG, small_llm

YARN = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 256}
OLD = CONFIG.to_hf()
NEW = {name: value for name, value in OLD.items() if not name.startswith("rope_")} | {
    "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0}
}


def overridden(mapping, overrides):
    return ModelConfig.from_hf(apply_overrides(mapping, overrides), "config.json")


@pytest.mark.parametrize("mapping", [OLD, NEW], ids=["transformers 4", "transformers 5"])
def test_an_override_wins_over_either_spelling(mapping):
    assert overridden(mapping, {}) == CONFIG
    assert overridden(mapping, {"rope_theta": 5e5}).rope_theta == 5e5
    assert overridden(mapping, {"max_position_embeddings": 99}).max_position_embeddings == 99
    for name in ("rope_scaling", "rope_parameters"):
        longer = overridden(mapping, {name: YARN})
        assert (longer.max_context_length, longer.rope_theta) == (512, 10_000.0)


def test_objects_are_merged_and_null_takes_scaling_away():
    file = OLD | {"rope_scaling": {"type": "yarn"} | dict(list(YARN.items())[1:])}
    assert overridden(file, {"rope_scaling": {"factor": 4.0}}).max_context_length == 1024
    assert overridden(file, {"rope_scaling": None}).rope_scaling is None
    assert overridden(file, {"rope_scaling": {"type": "default"}}).rope_scaling is None


def test_a_value_that_can_not_be_is_the_configurations_own_error():
    with pytest.raises(ModelLoadError, match="rope_theta"):
        overridden(OLD, {"rope_theta": -1})
    with pytest.raises(ModelLoadError, match="rope_scaling must be an object"):
        overridden(OLD, {"rope_scaling": 3})
    with pytest.raises(ValueError, match=r"no 'rope_tetha' of config.json; did you mean 'rope_th"):
        overridden(OLD, {"rope_tetha": 1})


def test_an_engine_takes_them_over_its_models_file():
    options = {"compile_ahead": False, "show_progress": False, "skip_tokenizer_init": True}
    with LLM(hf_overrides={"max_position_embeddings": 96}, **options) as llm:
        assert llm.max_model_len == llm.model_config.max_position_embeddings == 96
    with pytest.raises(ModelLoadError, match=r"config.json with hf_overrides: .*hidden_size"):
        LLM(hf_overrides={"hidden_size": "wide"}, **options)
    with pytest.raises(TypeError, match="hf_overrides can't be a function; write a dict"):
        LLM(hf_overrides=lambda config: config)
    with pytest.raises(ValueError, match=r"hf_overrides changes a config.json, and params"):
        small_llm(hf_overrides={"rope_theta": 5.0})
