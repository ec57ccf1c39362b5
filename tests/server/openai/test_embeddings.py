"""`/v1/embeddings`: inputs of all kinds, both encodings, and what is refused."""

import asyncio
import base64

import numpy as np
import pytest

from jaxinfer.serving.pooling.embedding_model import EmbeddingModel
from tests.server.openai.fake_engine import FakeEngine

STORY = "Once upon a time"
FIELDS = {"model": "tiny"}


def embed(client, given, **fields):
    answer = client.post("/v1/embeddings", {**FIELDS, "input": given, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


def vectors(answer):
    assert [each["index"] for each in answer["data"]] == list(range(len(answer["data"])))
    assert {each["object"] for each in answer["data"]} == {"embedding"}
    return [np.array(each["embedding"], np.float32) for each in answer["data"]]


def refused(client, param, given="a", **fields):
    answer = client.post("/v1/embeddings", {**FIELDS, "input": given, **fields})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param
    return answer.json()["error"]["message"]


@pytest.fixture(scope="module")
def cutting(make_client, engine):
    """The same model, as if its files had prompts and allowed to cut."""

    class Cutting(FakeEngine):
        embedding_model = EmbeddingModel(
            size=engine.model_config.hidden_size,
            is_matryoshka=True,
            prompts={"query": "Instruct: find\nQuery:"},
        )

        def generate(self, *args, **options):
            return self._engine.generate(*args, **options)

    return make_client(Cutting(engine))


def test_inputs_of_all_kinds_give_a_vector_each(client, engine):
    ids = engine.tokenizer.encode(STORY)
    (alone,) = vectors(embed(client, STORY))
    assert alone.shape == (engine.model_config.hidden_size,)
    np.testing.assert_allclose(np.linalg.norm(alone), 1, rtol=1e-6)
    answer = embed(client, [ids, [5, 6], ids[:1]])
    assert (answer["object"], answer["model"]) == ("list", "tiny")
    assert answer["usage"]["prompt_tokens"] == answer["usage"]["total_tokens"] == len(ids) + 3
    listed = [embed(client, ids), answer, embed(client, [STORY, "Hello"])]
    for each in listed:
        np.testing.assert_allclose(vectors(each)[0], alone, rtol=1e-5, atol=1e-6)
    (raw,) = vectors(embed(client, STORY, normalize=False))
    np.testing.assert_allclose(raw / np.linalg.norm(raw), alone, rtol=1e-6, atol=1e-7)


def test_a_vector_is_the_engines_own(client, engine):
    (here,) = asyncio.run(engine.embed([9, 8, 7]))
    (there,) = vectors(embed(client, [9, 8, 7]))
    np.testing.assert_array_equal(there, here.embedding)


def test_base64_has_the_bits_of_the_numbers(client):
    (numbers,) = vectors(embed(client, STORY, encoding_format="float"))
    (text,) = [each["embedding"] for each in embed(client, STORY, encoding_format="base64")["data"]]
    np.testing.assert_array_equal(np.frombuffer(base64.b64decode(text), "<f4"), numbers)


@pytest.mark.parametrize("length", [50, 70], ids=["one chunk", "two chunks"])
def test_a_cached_prefix_gives_equal_bits(client, length):
    prompt = [300 + length + i % 40 for i in range(length)]
    first = embed(client, prompt)
    again = embed(client, prompt)
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] >= 48
    np.testing.assert_array_equal(vectors(again)[0], vectors(first)[0])
    salted = embed(client, prompt, cache_salt="mine")
    assert salted["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    np.testing.assert_array_equal(vectors(salted)[0], vectors(first)[0])


def test_vectors_are_cut_and_of_length_one_again(cutting):
    (whole,) = vectors(embed(cutting, STORY))
    (cut,) = vectors(embed(cutting, STORY, dimensions=8))
    np.testing.assert_allclose(cut, whole[:8] / np.linalg.norm(whole[:8]), rtol=1e-5)
    assert "dimensions must be from 1 to" in refused(cutting, "dimensions", dimensions=10**6)


def test_a_prompt_of_the_model_goes_in_front_of_texts(cutting):
    named = embed(cutting, [STORY], prompt_name="query")
    written = embed(cutting, "Instruct: find\nQuery:" + STORY)
    assert named["usage"]["prompt_tokens"] == written["usage"]["prompt_tokens"]
    np.testing.assert_allclose(vectors(named)[0], vectors(written)[0], rtol=1e-5, atol=1e-6)
    assert "it has 'query'" in refused(cutting, "prompt_name", prompt_name="passage")
    assert "token ids" in refused(cutting, "prompt_name", [[1, 2]], prompt_name="query")


def test_what_can_not_be_had_is_refused_by_its_field(client, engine):
    assert "Matryoshka" in refused(client, "dimensions", dimensions=8)
    refused(client, "dimensions", dimensions=0)
    refused(client, "encoding_format", encoding_format="int8")
    assert "unknown field 'truncate'" in refused(client, "truncate", truncate=1)
    for bad in ("", [], [[]], [1, "a"], 3):
        refused(client, "input", bad)
    refused(client, "input", [10**6])
    refused(client, "priority", priority=1)
    answer = client.post("/v1/embeddings", {"model": "gpt", "input": "a"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")


def test_a_text_may_fill_the_models_length(client, engine):
    most = engine.max_model_len
    assert embed(client, [7] * most)["usage"]["prompt_tokens"] == most
    assert f"length is {most} tokens" in refused(client, "input", [7] * (most + 1))


def test_a_request_id_is_returned(client):
    answer = client.post("/v1/embeddings", {"input": "a", "request_id": "mine", "user": "me"})
    assert answer.headers["X-Request-Id"] == "mine"
