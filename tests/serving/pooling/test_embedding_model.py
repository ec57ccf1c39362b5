"""A model's files about its vectors: cut ones, prompts by name, and pooling that can't be had."""

import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from jaxinfer import LLM, save_params
from jaxinfer.errors import ModelLoadError
from jaxinfer.model.checkpoint.hub import BUNDLED_MODEL
from jaxinfer.model.text.tokenizer import Tokenizer
from jaxinfer.serving.pooling.embedding_model import EmbeddingModel, read_embedding_model
from tests.model.text.small_tokenizer import write_tokenizer
from tests.serving.small_llm import CONFIG, PROMPTS, small_llm, small_params

SIZE = CONFIG.hidden_size
TYPES = "sentence_transformers.models."
PROMPTS_BY_NAME = {"query": "Instruct: find\nQuery:", "document": ""}
OF_LAST_TOKEN = {
    "word_embedding_dimension": SIZE,
    "pooling_mode_cls_token": False,
    "pooling_mode_mean_tokens": False,
    "pooling_mode_lasttoken": True,
    "include_prompt": True,
}


def write(directory, *, pooling=OF_LAST_TOKEN, modules=("Normalize",), prompts=None, **config):
    """Files as Sentence Transformers writes them, in front of Hugging Face's config.json."""
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(CONFIG.to_hf() | config))
    kinds = [("Transformer", ""), ("Pooling", "1_Pooling")]
    kinds += [(kind, f"{i}_{kind}") for i, kind in enumerate(modules, 2)]
    listed = [
        {"idx": i, "name": str(i), "path": path, "type": TYPES + kind}
        for i, (kind, path) in enumerate(kinds)
    ]
    (directory / "modules.json").write_text(json.dumps(listed))
    (directory / "1_Pooling").mkdir(exist_ok=True)
    (directory / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    more = {"prompts": PROMPTS_BY_NAME if prompts is None else prompts, "default_prompt_name": None}
    (directory / "config_sentence_transformers.json").write_text(json.dumps(more))
    return directory


def test_a_directory_of_sentence_transformers_is_read(tmp_path):
    model = read_embedding_model(write(tmp_path), SIZE)
    assert model.prompt("query") == "Instruct: find\nQuery:"
    assert not model.is_matryoshka
    newer = {"embedding_dimension": SIZE, "pooling_mode": "lasttoken", "include_prompt": True}
    assert read_embedding_model(write(tmp_path, pooling=newer), SIZE) == model


def test_a_plain_directory_and_none_at_all_have_no_prompts(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG.to_hf()))
    plain = EmbeddingModel(size=SIZE)
    assert read_embedding_model(tmp_path, SIZE) == read_embedding_model(None, SIZE) == plain


@pytest.mark.parametrize(
    ("pooling", "named"),
    [
        ({"pooling_mode_mean_tokens": True, "pooling_mode_lasttoken": False}, "mean_tokens"),
        ({"pooling_mode_cls_token": True}, "cls_token and lasttoken"),
        ({"pooling_mode_lasttoken": False}, "no mode"),
        ({"pooling_mode_lasttoken": False, "pooling_mode": "mean"}, "mean"),
    ],
)
def test_another_pooling_is_refused_by_its_name(tmp_path, pooling, named):
    with pytest.raises(ValueError, match=rf"1_Pooling/config.json pools by {named};"):
        read_embedding_model(write(tmp_path, pooling=OF_LAST_TOKEN | pooling), SIZE)


def test_a_module_that_is_not_run_is_refused_by_its_name(tmp_path):
    with pytest.raises(ValueError, match="has a module 'Dense'"):
        read_embedding_model(write(tmp_path, modules=("Dense", "Normalize")), SIZE)


@pytest.mark.parametrize("content", ["{}x", '["Transformer"]', '{"a": 1}', '[{"type": 3}]'])
def test_a_damaged_list_of_modules_is_named(tmp_path, content):
    write(tmp_path)
    (tmp_path / "modules.json").write_text(content)
    with pytest.raises(ModelLoadError, match=r"modules\.json"):
        read_embedding_model(tmp_path, SIZE)


def test_damaged_prompts_and_dimensions_are_named(tmp_path):
    with pytest.raises(ModelLoadError, match="prompts must be an object of texts"):
        read_embedding_model(write(tmp_path, prompts={"query": 3}), SIZE)
    for bad in (8, [0], [SIZE + 1], ["8"]):
        with pytest.raises(ModelLoadError, match="matryoshka_dimensions must be a list"):
            read_embedding_model(write(tmp_path, matryoshka_dimensions=bad), SIZE)


def test_vectors_are_cut_where_the_files_or_an_override_say_so(tmp_path):
    every = EmbeddingModel(size=SIZE, is_matryoshka=True, prompts=PROMPTS_BY_NAME)
    assert read_embedding_model(write(tmp_path, is_matryoshka=True), SIZE) == every
    write(tmp_path)
    assert read_embedding_model(tmp_path, SIZE, {"is_matryoshka": True}) == every
    few = read_embedding_model(write(tmp_path, matryoshka_dimensions=[8, 4]), SIZE)
    few.check_dimensions(4)
    with pytest.raises(ValueError, match="dimensions is 5, but the model has 4, 8"):
        few.check_dimensions(5)
    every.check_dimensions(5)
    for bad in (0, SIZE + 1):
        with pytest.raises(ValueError, match=rf"dimensions must be from 1 to {SIZE}, got {bad}"):
            every.check_dimensions(bad)
    with pytest.raises(TypeError, match="dimensions must be an integer, got True"):
        every.check_dimensions(True)
    with pytest.raises(ValueError, match="no Matryoshka dimensions"):
        EmbeddingModel(size=SIZE).check_dimensions(4)


@pytest.fixture(scope="module")
def ending_tokenizer(tmp_path_factory):
    """One whose file appends the end token to each text, as Qwen3-Embedding's does."""
    directory = write_tokenizer(tmp_path_factory.mktemp("ending"))
    file = directory / "tokenizer.json"
    content = json.loads(file.read_text())
    end = next(t for t in content["added_tokens"] if t["content"] == "<|endoftext|>")
    name = end["content"]
    of_text = {"Sequence": {"id": "A", "type_id": 0}}
    appended = {"SpecialToken": {"id": name, "type_id": 0}}
    content["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [of_text, appended],
        "pair": [of_text, {"Sequence": {"id": "B", "type_id": 0}}, appended],
        "special_tokens": {name: {"id": name, "ids": [end["id"]], "tokens": [name]}},
    }
    file.write_text(json.dumps(content))
    tokenizer = Tokenizer.from_directory(directory)
    yield tokenizer, end["id"]
    tokenizer.close()


@pytest.fixture(scope="module")
def embedder(ending_tokenizer):
    """The small engine, whose model has prompts and can be cut."""
    with small_llm(tokenizer=ending_tokenizer[0]) as llm:
        llm._embedding_model = EmbeddingModel(
            size=SIZE, is_matryoshka=True, prompts=PROMPTS_BY_NAME
        )
        yield llm


def test_a_text_ends_in_the_token_that_its_tokenizer_appends(embedder, ending_tokenizer):
    tokenizer, end = ending_tokenizer
    outputs = embedder.embed(["Hello", "Hello you"])
    assert [output.token_ids[-1] for output in outputs] == [end, end]
    plain = tokenizer.encode("Hello", add_special_tokens=False)
    assert outputs[0].token_ids == [*plain, end]
    (same,) = embedder.embed([[*plain, end]])
    np.testing.assert_array_equal(same.embedding, outputs[0].embedding)


def test_a_cut_vector_is_of_length_one_again(embedder):
    whole = embedder.embed(PROMPTS, normalize=False)
    cut = embedder.embed(PROMPTS, dimensions=4)
    for one, raw in zip(cut, whole, strict=True):
        head = raw.embedding[:4]
        np.testing.assert_allclose(one.embedding, head / np.linalg.norm(head), rtol=1e-6)
    unscaled = embedder.embed(PROMPTS, dimensions=4, normalize=False)
    np.testing.assert_array_equal(unscaled[0].embedding, whole[0].embedding[:4])


def test_a_prompt_by_name_goes_in_front_of_each_text(embedder):
    named = embedder.embed(["kite", {"prompt": "tale"}], prompt_name="query")
    written = embedder.embed([PROMPTS_BY_NAME["query"] + text for text in ("kite", "tale")])
    assert [each.token_ids for each in named] == [each.token_ids for each in written]
    assert embedder.embed("kite", prompt_name="document")[0].token_ids != named[0].token_ids
    with pytest.raises(ValueError, match="it has 'query', 'document'"):
        embedder.embed("kite", prompt_name="passage")
    with pytest.raises(ValueError, match=r"prompts\[0\] is token ids, and prompt_name"):
        embedder.embed(PROMPTS, prompt_name="query")


@pytest.mark.slow
def test_an_engine_reads_the_files_of_its_directory(tmp_path):
    shutil.copytree(BUNDLED_MODEL, tmp_path, dirs_exist_ok=True)
    config = json.loads((tmp_path / "config.json").read_text())
    write(tmp_path, **config)
    options = {"compile_ahead": False, "show_progress": False, "max_model_len": 64}
    with LLM(tmp_path, hf_overrides={"is_matryoshka": True}, **options) as llm:
        (output,) = llm.embed("a kite", dimensions=8, prompt_name="query")
        assert output.embedding.shape == (8,)
    write(tmp_path, pooling={"pooling_mode_mean_tokens": True}, **config)
    with LLM(tmp_path, **options) as llm:
        assert llm.generate("a kite", use_tqdm=False)[0].outputs[0].token_ids
        with pytest.raises(ValueError, match="pools by mean_tokens"):
            llm.embed("a kite")


@pytest.mark.slow
def test_files_without_a_head_say_how_their_vectors_are_had(tmp_path):
    save_params(small_params(), CONFIG, tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    del tensors["lm_head.weight"]
    save_file({name.removeprefix("model."): each for name, each in tensors.items()}, file)
    options = {"skip_tokenizer_init": True, "max_model_len": 64, "num_kv_blocks": 65}
    options |= {"compile_ahead": False, "show_progress": False}
    said = "'lm_head.weight' is missing: the head, .* hf_overrides={\"tie_word_embeddings\": True}"
    with pytest.raises(ModelLoadError, match=said):
        LLM(tmp_path, **options)
    with small_llm() as whole:
        (wanted,) = whole.embed([PROMPTS[0]])
    with LLM(tmp_path, **options, hf_overrides={"tie_word_embeddings": True}) as llm:
        (found,) = llm.embed([PROMPTS[0]])
    np.testing.assert_allclose(found.embedding, wanted.embedding, atol=1e-6)
