"""Start-up from a directory, and what it says and refuses."""

import dataclasses
import functools
import json
import types

import jax
import pytest

from jaxinfer import LLM, SamplingParams
from jaxinfer.config import EngineConfig
from jaxinfer.errors import CapacityError, ModelLoadError
from jaxinfer.model.checkpoint import weights
from jaxinfer.model.checkpoint.weights import save_params
from jaxinfer.model.rope_scaling import RopeScaling
from jaxinfer.model.sharding import ShardingRules, make_mesh
from jaxinfer.serving.runner.device_params import describe_params, place_params
from jaxinfer.serving.startup import memory
from jaxinfer.serving.startup.mesh import choose_mesh
from jaxinfer.serving.startup.model_source import ModelSource
from tests.model.text.small_tokenizer import write_tokenizer
from tests.serving.small_llm import CONFIG, SETTINGS, greedy_reference, small_llm, small_params

GREEDY = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    directory = write_tokenizer(tmp_path_factory.mktemp("model"))
    save_params(small_params(), CONFIG, directory)
    return directory


def open_llm(directory, **options):
    return LLM(directory, **(SETTINGS | options))


def test_a_directory_is_loaded_whole(directory):
    with open_llm(directory) as llm:
        (output,) = llm.generate([[1, 2, 3]], GREEDY, use_tqdm=False)
        assert output.outputs[0].token_ids == greedy_reference([1, 2, 3], 4)
        assert llm.tokenizer.decode(output.outputs[0].token_ids) == output.outputs[0].text
        assert dataclasses.replace(llm.model_config, eos_token_ids=()) == dataclasses.replace(
            CONFIG, eos_token_ids=()
        )


def test_start_up_says_what_runs_where_and_how_much_fits(directory, capsys):
    open_llm(directory, show_progress=True).close()
    said = capsys.readouterr().err
    assert "Devices: 1 x CPU" in said
    assert "Loading weights" in said
    assert "65 blocks, 1,024 tokens" in said
    assert "16.0 sequences of 64 tokens" in said


def test_a_cpu_that_nobody_asked_for_is_mentioned(directory, capsys, monkeypatch):
    monkeypatch.delenv("JAX_PLATFORMS")
    open_llm(directory, show_progress=True).close()
    assert "No GPU found: running on the CPU" in capsys.readouterr().err


def test_silence_is_possible(directory, capsys):
    open_llm(directory).close()
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")


def test_another_tokenizer_may_be_named(directory, tmp_path):
    other = write_tokenizer(tmp_path, chat_template="other: {{ messages[0].content }}")
    with open_llm(directory, tokenizer=other) as llm:
        assert llm.tokenizer.apply_chat_template([{"role": "user", "content": "x"}]) == "other: x"


def test_a_model_without_tokenizer_json_is_named_before_weights_are_read(directory, tmp_path):
    (tmp_path / "config.json").write_bytes((directory / "config.json").read_bytes())
    with pytest.raises(ModelLoadError, match=r"tokenizer\.json: no such file"):
        open_llm(tmp_path)


def test_an_impossible_attention_backend_is_named_before_weights_are_read(directory, monkeypatch):
    monkeypatch.setattr("jaxinfer.serving.startup.loading.load_params", None)
    with pytest.raises(ValueError, match="attention_backend='mosaic' needs a Hopper GPU") as caught:
        LLM(directory, attention_backend="mosaic", show_progress=False)
    assert str(caught.value).endswith(": numba, xla")


def test_a_model_of_no_family_is_named(directory, tmp_path):
    config = json.loads((directory / "config.json").read_text())
    config |= {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelLoadError, match=r"config\.json"):
        open_llm(tmp_path)


def test_a_length_beyond_the_models_positions_is_refused():
    with pytest.raises(ValueError, match=r"max_model_len 257 .* longest context, 256"):
        small_llm(max_model_len=257)


@pytest.mark.slow
def test_compiling_ahead_leaves_nothing_to_compile(directory, capsys):
    with open_llm(directory, compile_ahead=True, show_progress=True) as llm:
        assert "Compiling" in capsys.readouterr().err
        before = llm.num_compilations
        llm.generate([[1, 2, 3], [4]], GREEDY, use_tqdm=False)
        llm.generate([[5]], SamplingParams(temperature=0.7, logprobs=2), use_tqdm=False)
        assert llm.num_compilations == before


def test_yarn_stretches_what_max_model_len_may_be():
    scaling = RopeScaling(factor=4.0, original_max_position_embeddings=256)
    stretched = dataclasses.replace(CONFIG, rope_scaling=scaling)
    with small_llm(config=stretched, max_model_len=1000, num_kv_blocks=130) as llm:
        assert llm.max_model_len == 1000
    with pytest.raises(ValueError, match="longest context, 1024"):
        small_llm(config=stretched, max_model_len=1025)


def _free_memory(monkeypatch, size):
    monkeypatch.setattr(
        memory.psutil, "virtual_memory", lambda: types.SimpleNamespace(available=size)
    )


def test_on_a_cpu_the_longest_length_that_fits_is_taken_and_said(monkeypatch, capsys):
    _free_memory(monkeypatch, 4 * 512 * 150)  # 512 bytes a token; a quarter is taken
    with small_llm(max_model_len=None, num_kv_blocks=None, show_progress=True) as llm:
        assert llm.max_model_len == 128
        assert "max_model_len is 128, the longest that fits" in capsys.readouterr().err
        (output,) = llm.generate([[1] * 120], GREEDY.clone(max_tokens=None), use_tqdm=False)
        assert len(output.outputs[0].token_ids) == 8


def test_the_models_own_length_is_taken_in_silence_where_it_fits(monkeypatch, capsys):
    with small_llm(max_model_len=None, num_kv_blocks=None, show_progress=True) as llm:
        assert llm.max_model_len == CONFIG.max_position_embeddings
        assert "longest that fits" not in capsys.readouterr().err


@pytest.mark.parametrize("replicas", [1, 2])
def test_given_blocks_bound_the_length_that_nobody_gave(replicas):
    with small_llm(max_model_len=None, num_kv_blocks=9, data_parallel_size=replicas) as llm:
        assert llm.max_model_len == 128
        assert [each.runner.max_model_len for each in llm._loaded.replicas] == [128] * replicas


def test_replicas_on_a_cpu_have_one_length(monkeypatch):
    _free_memory(monkeypatch, 4 * 2 * 512 * 150)
    with small_llm(max_model_len=None, num_kv_blocks=None, data_parallel_size=2) as llm:
        assert [each.runner.max_model_len for each in llm._loaded.replicas] == [128, 128]


def test_a_length_that_does_not_fit_a_cpu_has_advice_for_a_cpu(monkeypatch):
    _free_memory(monkeypatch, 4 * 512 * 150)
    with pytest.raises(CapacityError, match=r"most 144, or free memory .* num_kv_blocks=17") as e:
        small_llm(max_model_len=256, num_kv_blocks=None)
    assert "gpu" not in str(e.value)
    small_llm(max_model_len=256, num_kv_blocks=17).close()  # what it advised


def test_a_length_that_does_not_fit_the_blocks_given_names_their_number():
    with pytest.raises(CapacityError, match="at most 128, or raise num_kv_blocks to 17"):
        small_llm(max_model_len=256, num_kv_blocks=9)


@functools.cache
def _endable_prompt():
    """A prompt after which the third greedy token is none of the first two."""
    for i in range(100):
        *others, third = greedy_reference([i, i + 1, i + 2], 3)
        if third not in others:
            return [i, i + 1, i + 2]
    raise AssertionError("no answer of this model can end at its third token")


def _with_defaults(tmp_path):
    directory = write_tokenizer(tmp_path)
    save_params(small_params(), CONFIG, directory)
    settings = json.loads((directory / "generation_config.json").read_text())
    ending = greedy_reference(_endable_prompt(), 3)[2]
    settings |= {"temperature": 0.25, "eos_token_id": [ending]}
    (directory / "generation_config.json").write_text(json.dumps(settings))
    return directory


def test_vllms_sampling_defaults_may_be_asked_for(tmp_path):
    directory = _with_defaults(tmp_path)
    with open_llm(directory) as llm:
        assert llm.get_default_sampling_params().temperature == 0.25
    with open_llm(directory, generation_config="vllm") as llm:
        assert llm.get_default_sampling_params() == SamplingParams()


@pytest.mark.parametrize("options", [{}, {"generation_config": "vllm"}])
def test_without_a_tokenizer_ids_go_in_and_out_and_end_all_the_same(tmp_path, options):
    directory = _with_defaults(tmp_path)
    with open_llm(directory, skip_tokenizer_init=True, **options) as llm:
        assert llm.tokenizer is None
        params = SamplingParams(temperature=0.0, max_tokens=9)
        (output,) = llm.generate([_endable_prompt()], params, use_tqdm=False)
        assert output.outputs[0].text == ""
        assert output.outputs[0].finish_reason == "stop"
        assert output.outputs[0].token_ids == greedy_reference(_endable_prompt(), 3)
        with pytest.raises(ValueError, match="this engine has no tokenizer"):
            llm.generate("text", use_tqdm=False)


def test_a_tokenizer_that_is_given_is_not_skipped(directory, tokenizer):
    for given in (str(directory), tokenizer):
        with pytest.raises(ValueError, match="skip_tokenizer_init and tokenizer exclude"):
            open_llm(directory, tokenizer=given, skip_tokenizer_init=True)


def test_too_little_memory_is_one_line_that_says_what_helps(monkeypatch):
    def allocate(programs, cache_directory):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory\nand more")

    monkeypatch.setattr("jaxinfer.serving.runner.kv_cache.allocate", allocate)
    with pytest.raises(CapacityError, match="lower num_kv_blocks or max_model_len") as caught:
        small_llm()
    assert "\n" not in str(caught.value)


def test_an_interrupt_while_compiling_frees_the_cache(directory, monkeypatch):
    seen = []

    def interrupt(runner):
        runner.reset_cache()
        seen.append(runner.resident.kv[0].k)
        raise KeyboardInterrupt

    monkeypatch.setattr("jaxinfer.serving.runner.runner.Runner.compile_all", interrupt)
    with pytest.raises(KeyboardInterrupt):
        open_llm(directory, compile_ahead=True)
    assert seen[0].is_deleted()


def test_the_mesh_is_the_callers_or_its_parameters_or_a_new_one():
    config = EngineConfig()
    mesh = make_mesh(2)
    assert choose_mesh(config, ModelSource(mesh=mesh)) == mesh
    assert choose_mesh(EngineConfig(tensor_parallel_size=4), ModelSource()).size == 4
    device = jax.devices()[3]
    moved = jax.device_put(small_params(), device)
    assert list(choose_mesh(config, ModelSource(params=moved)).devices.flat) == [device]


def test_params_on_other_devices_than_the_mesh_are_refused():
    mesh = make_mesh(2)
    params = place_params(
        small_params(), describe_params(small_params(), CONFIG, mesh, ShardingRules())
    )
    with pytest.raises(ValueError, match=r"lies on 2 devices, which are not the 4 of mesh; leave"):
        choose_mesh(EngineConfig(), ModelSource(params=params, mesh=make_mesh(4)))
    assert choose_mesh(EngineConfig(), ModelSource(params=params, mesh=mesh)) == mesh


def test_what_checks_the_weights_is_kept_for_the_next_start(directory, tmp_path, monkeypatch):
    def weight_check(x):
        return jax.numpy.isfinite(x).all()

    monkeypatch.setattr(weights, "_FINITE", (jax.jit(weight_check), "NaN"))
    open_llm(directory, compilation_cache_dir=str(tmp_path)).close()
    assert list(tmp_path.glob("jit_weight_check-*"))


@pytest.mark.slow
def test_an_engine_heals_a_damaged_compilation_cache(tmp_path, caplog):
    said = []
    for _ in range(3):
        caplog.clear()
        with small_llm(compilation_cache_dir=str(tmp_path)) as llm:
            (output,) = llm.generate([[1, 2, 3]], GREEDY, use_tqdm=False)
        assert output.outputs[0].token_ids == greedy_reference([1, 2, 3], 4)
        said.append("".join(record.getMessage() for record in caplog.records))
        if len(said) == 1:
            for path in [*tmp_path.glob("*-cache"), *tmp_path.glob("traced/*")]:
                path.write_bytes(path.read_bytes()[:-100])
        jax.clear_caches()  # as a new process would begin
    assert (said[0], said[2]) == ("", "")
    assert "damaged entries of the compilation cache" in said[1]
