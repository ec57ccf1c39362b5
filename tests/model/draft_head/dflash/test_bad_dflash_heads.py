"""DFlash heads that can't be run, or are for another model, are refused in one line."""

import json

import numpy as np
import pytest

from jaxinfer.errors import ModelLoadError
from jaxinfer.model.checkpoint.safetensors_file import read_header, write_file
from jaxinfer.model.draft_head.dflash.config import read_dflash_config
from jaxinfer.model.draft_head.files import read_draft_head
from jaxinfer.model.draft_head.head_config import read_head_config
from jaxinfer.model.draft_head.weights import save_draft_head
from tests.model import tiny
from tests.model.draft_head.random_head import dflash_config, random_head

MODEL = tiny.config(num_hidden_layers=8)
CONFIG = dflash_config(MODEL, states=(1, 4, 7))


@pytest.fixture
def directory(tmp_path):
    save_draft_head(random_head(CONFIG), CONFIG, tmp_path)
    return tmp_path


def refused(directory, call=read_draft_head):
    with pytest.raises(ModelLoadError) as caught:
        call(directory, MODEL, read_dflash_config)
    message = str(caught.value)
    assert message.startswith(str(directory))
    assert "\n" not in message
    return message


def written(directory, mapping):
    (directory / "config.json").write_text(json.dumps(mapping))


OPTIONS = CONFIG.to_hf()["dflash_config"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"architectures": ["LlamaForCausalLMEagle3"]}, "not a DFlash head: architectures must"),
        ({"speculators_model_type": "eagle3"}, "not a DFlash head: speculators_model_type is"),
        ({"speculators_model_type": "dflash"}, "transformer_layer_config must be an object"),
        ({"model_type": "llama"}, "model_type must be 'qwen3', got 'llama'"),
        ({"hidden_size": 64}, "another model: hidden_size is 64, and the model's is 32"),
        ({"vocab_size": 100}, "another model: vocab_size is 100"),
        ({"num_target_layers": 36}, "another model: num_target_layers is 36"),
        ({"target_hidden_size": 64}, "another model: target_hidden_size is 64"),
        ({"attention_bias": True}, "attention_bias is not supported"),
        ({"quantization_config": {"bits": 8}}, "quantized draft head"),
        ({"use_sliding_window": True}, "use_sliding_window is not supported"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding-window attention"),
        ({"is_causal": True}, "is_causal is not supported"),
        ({"is_neox_style": False}, "is_neox_style=False is not supported"),
        ({"sample_from_anchor": True}, "sample_from_anchor is not supported"),
        ({"dflash_config": {**OPTIONS, "causal": True}}, "causal is not supported"),
        ({"dflash_config": {**OPTIONS, "use_swa": True}}, "use_swa is not supported"),
        ({"dflash_config": {**OPTIONS, "attention_sink_bias": True}}, "attention_sink_bias"),
        ({"dflash_config": {**OPTIONS, "use_aux_hidden_state": False}}, "use_aux_hidden_state"),
        ({"dflash_config": {**OPTIONS, "mask_token_id": 64}}, "mask_token_id must be"),
        ({"dflash_config": {**OPTIONS, "mask_token_id": None}}, "mask_token_id is missing"),
        ({"dflash_config": {**OPTIONS, "target_layer_ids": [0, 7]}}, "target_layer_ids must be"),
        ({"dflash_config": {**OPTIONS, "target_layer_ids": []}}, "must be 1 to 64 layers"),
        ({"dflash_config": {**OPTIONS, "target_layer_ids": 3}}, "must be 1 to 64 layers"),
        ({"dflash_config": {"mask_token_id": 3}}, "target_layer_ids is missing"),
        ({"dflash_config": 3}, "dflash_config must be an object"),
        ({"block_size": None}, "block_size is missing"),
        ({"block_size": 1}, "block_size must be"),
        ({"draft_vocab_size": 65}, "draft_vocab_size"),
        ({"hidden_act": "gelu"}, "hidden_act"),
    ],
    ids=str,
)
def test_a_config_that_is_refused(directory, changes, said):
    written(directory, CONFIG.to_hf() | changes)
    assert said in refused(directory, read_head_config)


def test_the_form_of_speculators_counts_the_layers_that_states_enter(directory):
    layers = CONFIG.layer.to_hf()
    layers["rope_parameters"] = {"rope_type": "default", "rope_theta": layers.pop("rope_theta")}
    mapping = {
        "speculators_model_type": "dflash",
        "architectures": ["DFlashSpeculator"],
        "transformer_layer_config": layers,
        "draft_vocab_size": 40,
        "block_size": 6,
        "aux_hidden_state_layer_ids": [1, 4, 7],
        "mask_token_id": CONFIG.mask_token_id,
        "sliding_window_non_causal": False,
        "sample_from_anchor": False,
    }
    written(directory, mapping)
    expected = dflash_config(MODEL, states=(1, 4, 7), draft_vocab_size=40)
    assert read_head_config(directory, MODEL, read_dflash_config) == expected
    assert "a draft head needs a tensor 'lm_head.weight'" in refused(directory)
    for wrong in ([1, 8], None):
        written(directory, mapping | {"aux_hidden_state_layer_ids": wrong})
        assert "aux_hidden_state_layer_ids" in refused(directory, read_head_config)


def test_the_published_form_with_the_block_size_among_the_options(directory):
    mapping = CONFIG.to_hf()
    assert mapping["dflash_config"]["target_layer_ids"] == [0, 3, 6]
    mapping["dflash_config"] = OPTIONS | {"block_size": mapping.pop("block_size")}
    del mapping["draft_vocab_size"]
    written(directory, mapping | {"num_target_layers": 8})
    assert read_head_config(directory, MODEL, read_dflash_config) == CONFIG


@pytest.mark.parametrize("name", ["fc", "layers.1.self_attn.k_norm", "hidden_norm"])
def test_a_missing_tensor(directory, name):
    file = directory / "model.safetensors"
    tensors = {name: np.array(entry.mapped()) for name, entry in read_header(file).items()}
    del tensors[f"{name}.weight"]
    write_file(file, tensors.items(), tensors)
    assert name in refused(directory)


def test_a_mask_embedding_of_its_own(directory):
    (directory / "mask_embedding.pt").touch()
    assert "mask_embedding.pt is not read" in refused(directory)
