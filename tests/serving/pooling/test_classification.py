"""Classifying heads: transformers' own scores and classes, of the files that it writes."""

import asyncio
import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from jaxinfer import LLM, AsyncLLM, ModelLoadError
from jaxinfer.serving.pooling.reranking import read_questions
from jaxinfer.testing import TINY_SETTINGS
from tests.lazy import torch
from tests.model import small_models
from tests.model.text.small_tokenizer import write_tokenizer

PROMPTS = [[5, 6, 7], [9, 3, 200, 41, 8], [1 + i % 50 for i in range(60)]]
QUERY = "What does Nils have?"
DOCUMENTS = ["A red kite.", "Gravity is a force.", "Nils has a kite."]
SETTINGS = TINY_SETTINGS | {"max_model_len": 256, "dtype": "float32"}
NAMES = {0: "calm", 1: "glad", 2: "sad"}
# Families whose layers are the others'; SmolLM3 stands for them.
FAMILIES = ["Qwen2", "Mistral", "Ministral3", "Phi3", "Olmo2"]


def logits_of(model, prompts):
    with torch.no_grad():
        return [model(torch.tensor([ids])).logits[0].numpy() for ids in prompts]


def softmax(logits):
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


def sigmoid(logits):
    return 1 / (1 + np.exp(-logits))


def copy_files(source, directory):
    for file in source.iterdir():
        (directory / file.name).write_bytes(file.read_bytes())


def change_config(directory, **fields):
    file = directory / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


@pytest.fixture(scope="module", params=["untied", "tied"])
def reranker(request, tmp_path_factory):
    """transformers' model with a head of one class, and its directory."""
    directory = write_tokenizer(tmp_path_factory.mktemp("reranker"))
    tied = request.param == "tied"
    return small_models.save_classifier(
        directory, num_labels=1, tie_word_embeddings=tied
    ), directory


@pytest.fixture(scope="module")
def ranking(reranker):
    with LLM(reranker[1], runner="pooling", **SETTINGS) as llm:
        yield llm


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    directory = write_tokenizer(tmp_path_factory.mktemp("classifier"))
    return small_models.save_classifier(directory, id2label=NAMES), directory


@pytest.fixture(scope="module")
def classifying(classifier):
    with LLM(classifier[1], runner="pooling", **SETTINGS) as llm:
        yield llm


def expected_relevance(model, reader):
    named = {str(i): text for i, text in enumerate(DOCUMENTS)}
    pairs = [("query", name) for name in named]
    questions = read_questions({"query": QUERY}, named, pairs, None, reader)
    found = logits_of(model, [list(each.prompt.token_ids) for each in questions])
    return [float(sigmoid(logits[0])) for logits in found]


def test_relevance_is_the_sigmoid_of_transformers_score(reranker, ranking):
    expected = expected_relevance(reranker[0], ranking._loaded.reader)
    assert max(expected) - min(expected) > 1e-3
    ranked = ranking.rerank(QUERY, DOCUMENTS)
    assert [each.index for each in ranked] == sorted(range(3), key=lambda i: -expected[i])
    for each in ranked:
        assert each.relevance_score == pytest.approx(expected[each.index], abs=1e-4)
        assert each.document == DOCUMENTS[each.index]
    scores = [each.score for each in ranking.score(QUERY, DOCUMENTS)]
    assert scores == pytest.approx(expected, abs=1e-4)
    assert [each.index for each in ranking.rerank(QUERY, DOCUMENTS, top_n=1)] == [ranked[0].index]


def test_one_class_has_the_sigmoid_as_its_probability(reranker, ranking):
    for logits, found in zip(
        logits_of(reranker[0], PROMPTS), ranking.classify(PROMPTS), strict=True
    ):
        assert found.label == "LABEL_0"
        assert found.logits == pytest.approx({"LABEL_0": logits[0]}, abs=1e-4)
        assert found.probabilities == pytest.approx({"LABEL_0": sigmoid(logits[0])}, abs=1e-4)


@pytest.mark.parametrize(
    "variant",
    [
        "Qwen3",
        pytest.param("Llama", marks=pytest.mark.slow),
        "SmolLM3-0",
        *(
            pytest.param(f"{name}-0", marks=pytest.mark.slow if i % 2 else pytest.mark.exhaustive)
            for i, name in enumerate(FAMILIES)
        ),
    ],
)
def test_classes_are_the_softmax_of_transformers_logits(variant, tmp_path):
    directory = write_tokenizer(tmp_path)
    fields = small_models.FAMILIES.get(variant, {"family": variant})
    model = small_models.save_classifier(directory, **fields, id2label=NAMES)
    expected = logits_of(model, PROMPTS)
    with LLM(directory, runner="pooling", **SETTINGS) as llm:
        for logits, found in zip(expected, llm.classify(PROMPTS), strict=True):
            assert found.label == NAMES[int(logits.argmax())]
            assert [*found.probabilities] == [*found.logits] == [*NAMES.values()]
            np.testing.assert_allclose([*found.logits.values()], logits, atol=1e-4)
            np.testing.assert_allclose([*found.probabilities.values()], softmax(logits), atol=1e-4)


def test_asyncio_programs_get_the_same(classifier, classifying):
    async def run():
        async with AsyncLLM(classifier[1], runner="pooling", **SETTINGS) as engine:
            return await engine.judge.classify(PROMPTS)

    for found, own in zip(asyncio.run(run()), classifying.classify(PROMPTS), strict=True):
        assert found.label == own.label
        assert found.logits == pytest.approx(own.logits, abs=1e-5)


def test_two_classes_need_no_names(tmp_path):
    directory = write_tokenizer(tmp_path)
    small_models.save_classifier(directory)
    assert "id2label" not in json.loads((directory / "config.json").read_text())
    with LLM(directory, runner="pooling", **SETTINGS) as llm:
        (found,) = llm.classify(PROMPTS[0])
        assert [*found.probabilities] == ["LABEL_0", "LABEL_1"]


@pytest.mark.parametrize(
    ("fields", "activation"),
    [
        ({"problem_type": "regression"}, lambda logits: logits),
        ({"problem_type": "multi_label_classification"}, sigmoid),
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}, None),
    ],
    ids=["regression", "several", "cross-encoder"],
)
def test_config_json_may_ask_for_another_activation(fields, activation, tmp_path):
    directory = write_tokenizer(tmp_path)
    model = small_models.save_classifier(directory, id2label=NAMES)
    change_config(directory, **fields)
    with LLM(directory, runner="pooling", **SETTINGS) as llm:
        (found,) = llm.classify(PROMPTS[0])
    (logits,) = logits_of(model, PROMPTS[:1])
    expected = logits if activation is None else activation(logits)
    np.testing.assert_allclose([*found.probabilities.values()], expected, atol=1e-4)


def test_it_can_not_generate_and_says_what_to_write(reranker):
    with pytest.raises(
        ModelLoadError, match=r'can\'t generate.*LLM\(model, runner="pooling"\)'
    ) as e:
        LLM(reranker[1], **SETTINGS)
    assert "\n" not in str(e.value)


def test_what_needs_a_language_model_is_refused(classifying, ranking, llm):
    with pytest.raises(ValueError, match=r"call classify\(prompts\) for its own classes"):
        classifying.decide(PROMPTS, ["a", "b"])
    with pytest.raises(ValueError, match=r"classes of its own \(calm, glad, sad\); leave labels"):
        classifying.classify(PROMPTS, ["a", "b"])
    for call in (classifying.rerank, classifying.score):
        with pytest.raises(ValueError, match="has 3 classes, and relevance is the score of"):
            call(QUERY, DOCUMENTS)
    with pytest.raises(ValueError, match="labels: this model has no classifying head"):
        llm.classify(PROMPTS)


def test_a_classifiers_files_may_lie_beside_a_pooling(reranker, ranking, tmp_path):
    copy_files(reranker[1], tmp_path)
    modules = [{"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    with LLM(tmp_path, runner="pooling", **SETTINGS) as llm:
        scores, own = (
            [each.score for each in engine.score(QUERY, DOCUMENTS)] for engine in (llm, ranking)
        )
    assert scores == pytest.approx(own, abs=1e-6)


def test_new_weights_leave_the_head_as_it_is(classifier, tmp_path):
    other = small_models.save_classifier(tmp_path, seed=1, id2label=NAMES)
    with (
        LLM(classifier[1], runner="pooling", **SETTINGS) as llm,
        LLM(write_tokenizer(tmp_path), runner="pooling", **SETTINGS) as source,
    ):
        before = llm.classify(PROMPTS)
        llm.update_params(source._loaded.replicas[0].runner.resident.params)
        after = llm.classify(PROMPTS)
    other.score = classifier[0].score
    for found, logits in zip(after, logits_of(other, PROMPTS), strict=True):
        np.testing.assert_allclose([*found.logits.values()], logits, atol=1e-4)
    assert (before[0].weight_version, after[0].weight_version) == (0, 1)


@pytest.mark.parametrize(
    ("score", "fields", "message"),
    [
        (None, {}, "config.json's classifier needs a tensor 'score.weight'"),
        (
            np.ones((3, 8)),
            {},
            r"score.weight has shape \(3, 8\), config.json implies \(classes, 64",
        ),
        (np.ones(64), {}, r"score.weight has shape \(64,\)"),
        (np.ones((3, 64), np.int32), {}, "score.weight has dtype int32, must be float32 or"),
        (np.full((3, 64), np.nan), {}, "score.weight holds NaN or infinity"),
        (np.ones((2, 64)), {}, "id2label must name the 2 rows of score.weight"),
        (np.ones((3, 64)), {"num_labels": 2}, "num_labels is 2, but score.weight has 3"),
        (np.ones((3, 64)), {"id2label": {"0": "a", "1": "a", "2": "b"}}, "a text of its own"),
        (np.ones((3, 64)), {"problem_type": "guess"}, "problem_type must be one of regression, "),
        (
            np.ones((3, 64)),
            {"sentence_transformers": {"activation_fn": "os.system"}},
            "sentence_transformers.activation_fn must be one of torch",
        ),
    ],
)
def test_damaged_heads_are_named(classifier, score, fields, message, tmp_path):
    copy_files(classifier[1], tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["score.weight"]
    if score is not None:
        kind = score.dtype if score.dtype == np.int32 else np.float32
        weights["score.weight"] = score.astype(kind)
    save_file(weights, tmp_path / "model.safetensors")
    change_config(tmp_path, **fields)
    with pytest.raises(ModelLoadError, match=message) as error:
        LLM(tmp_path, runner="pooling", **SETTINGS)
    assert "\n" not in str(error.value)
