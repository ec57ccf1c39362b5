"""Heads that can't be run, or are for another model, are refused in one line that says why."""

import json

import numpy as np
import pytest

from jaxinfer.errors import ModelLoadError
from jaxinfer.model.checkpoint.safetensors_file import read_header, write_file
from jaxinfer.model.draft_head.eagle3.config import read_eagle3_config
from jaxinfer.model.draft_head.files import read_draft_head
from jaxinfer.model.draft_head.head_config import read_head_config
from jaxinfer.model.draft_head.weights import load_draft_head, save_draft_head
from tests.model import tiny
from tests.model.draft_head.random_head import head_config, random_head

MODEL = tiny.config(num_hidden_layers=8)
CONFIG = head_config(MODEL)


@pytest.fixture
def directory(tmp_path):
    save_draft_head(random_head(CONFIG), CONFIG, tmp_path)
    return tmp_path


def refused(directory, call=read_draft_head, model=MODEL):
    with pytest.raises(ModelLoadError) as caught:
        call(directory, model, read_eagle3_config)
    message = str(caught.value)
    assert message.startswith(str(directory))
    assert "\n" not in message
    return message


def changed_config(directory, **changes):
    file = directory / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def changed_tensors(directory, change):
    file = directory / "model.safetensors"
    tensors = {name: np.array(entry.mapped()) for name, entry in read_header(file).items()}
    change(tensors)
    write_file(file, tensors.items(), tensors)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"architectures": ["Qwen3ForCausalLM"]}, "not an EAGLE-3 head"),
        ({"architectures": None}, "not an EAGLE-3 head"),
        ({"hidden_size": 64}, "another model: hidden_size is 64, and the model's is 32"),
        ({"vocab_size": 100}, "another model: vocab_size is 100"),
        ({"target_hidden_size": 64}, "another model: target_hidden_size is 64"),
        ({"draft_vocab_size": 65}, "draft_vocab_size"),
        ({"draft_vocab_size": "all"}, "draft_vocab_size"),
        ({"num_hidden_layers": 2}, "num_hidden_layers must be 1"),
        ({"norm_before_fc": True, "fc_norm": True}, "norm_before_fc and fc_norm exclude each"),
        ({"fc_norm": 1}, "fc_norm"),
        ({"attention_bias": True}, "attention_bias is not supported"),
        ({"norm_output": "yes"}, "norm_output"),
        ({"quantization_config": {"bits": 8}}, "quantized draft head"),
        ({"eagle_config": {"use_aux_hidden_state": False}}, "use_aux_hidden_state"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2]}}, "must be 3 layers"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 8]}}, "layer_ids"),
        ({"eagle_config": 3}, "eagle_config must be an object"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"speculators_model_type": "dflash"}, "speculators_model_type is 'dflash'"),
        ({"speculators_model_type": "eagle3"}, "transformer_layer_config must be an object"),
        (
            {
                "speculators_model_type": "eagle3",
                "transformer_layer_config": {"model_type": "qwen3"},
            },
            "model_type must be 'llama'",
        ),
    ],
    ids=str,
)
def test_a_config_that_is_refused(directory, changes, said):
    changed_config(directory, **changes)
    assert said in refused(directory, read_head_config)


def test_both_forms_of_a_config_are_read(directory):
    file = directory / "config.json"
    plain = json.loads(file.read_text())
    names = ["draft_vocab_size", "norm_before_residual", "eagle_config", "norm_output"]
    names += ["norm_before_fc", "fc_norm"]
    outer = {name: plain.pop(name) for name in names}
    outer |= {"eagle_aux_hidden_state_layer_ids": None, "transformer_layer_config": plain}
    file.write_text(json.dumps({"speculators_model_type": "eagle3", **outer}))
    assert read_head_config(directory, MODEL, read_eagle3_config) == CONFIG


def test_a_norm_may_be_asked_for_beside_the_states_and_needs_its_tensor(directory):
    file = directory / "config.json"
    config = json.loads(file.read_text())
    del config["norm_before_fc"]
    config["eagle_config"]["norm_before_fc"] = True
    file.write_text(json.dumps(config))
    assert read_head_config(directory, MODEL, read_eagle3_config).norm_before_fc
    assert "input_norm" in refused(directory)


def test_without_a_choice_the_states_are_of_the_paper(directory):
    changed_config(directory, eagle_config=None)
    assert read_head_config(directory, MODEL, read_eagle3_config).states == (2, 4, 5)
    message = refused(directory, model=tiny.config())
    assert "eagle_aux_hidden_state_layer_ids is missing, and its default" in message
    assert f"{tiny.config().num_hidden_layers} layers" in message


def test_a_directory_without_a_head(tmp_path):
    assert "config.json: no such file" in refused(tmp_path)


@pytest.mark.parametrize("name", ["fc", "midlayer.hidden_norm", "lm_head", "d2t"])
def test_a_missing_tensor(directory, name):
    name += "" if name == "d2t" else ".weight"
    changed_tensors(directory, lambda tensors: tensors.pop(name))
    assert name in refused(directory)


def test_a_foreign_tensor_and_a_wrong_shape(directory):
    changed_tensors(directory, lambda tensors: tensors.update(other=np.zeros(3, np.float32)))
    assert "tensor 'other' is not in" in refused(directory)
    changed_tensors(directory, lambda tensors: (tensors.pop("other"), _widen(tensors)))
    assert "fc.weight has shape (32, 97)" in refused(directory)


def _widen(tensors):
    tensors["fc.weight"] = np.zeros((32, 97), np.float32)


@pytest.mark.parametrize("offset", [-50, 60])
def test_tokens_outside_of_the_vocabulary(directory, offset):
    changed_tensors(directory, lambda tensors: tensors["d2t"].__setitem__(5, offset))
    message = refused(directory)
    assert "d2t names token" in message
    assert "the model has 64" in message


def test_weights_that_are_no_numbers(directory):
    changed_tensors(directory, lambda tensors: tensors["fc.weight"].__setitem__((0, 0), np.nan))
    message = refused(directory, lambda *args: load_draft_head(read_draft_head(*args), "float32"))
    assert "fc.weight holds NaN" in message
