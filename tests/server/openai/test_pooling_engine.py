"""A server whose engine is for pooling alone: it answers what it can, and refuses the rest."""

import pytest

from jaxinfer import AsyncLLM

MESSAGES = [{"role": "user", "content": "Hi"}]


@pytest.fixture(scope="module")
def pooling(make_client):
    engine = AsyncLLM(
        max_model_len=256,
        max_num_seqs=4,
        max_num_batched_tokens=64,
        num_kv_blocks=257,
        show_progress=False,
        runner="pooling",
    )
    yield make_client(engine)
    engine.shutdown()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "a"}),
        ("/v1/completions", {"prompt": "a", "stream": True}),
        ("/v1/completions", {"prompt": "a", "max_tokens": 0, "echo": True, "logprobs": 1}),
        ("/v1/chat/completions", {"messages": MESSAGES}),
        ("/v1/chat/completions", {"messages": MESSAGES, "stream": True}),
        ("/v1/responses", {"input": "a"}),
    ],
)
def test_what_generates_is_a_clear_400(pooling, path, body):
    answer = pooling.post(path, body)
    assert answer.status_code == 400, answer.text
    message = answer.json()["error"]["message"]
    assert "runner='pooling'" in message
    assert "start it with runner='generate'" in message


def test_anthropics_messages_are_refused_too(pooling):
    body = {"model": "tiny", "max_tokens": 3, "messages": MESSAGES}
    answer = pooling.post("/v1/messages", body)
    assert answer.status_code == 400
    assert "runner='pooling'" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/embeddings", {"input": ["a", "b c"]}),
        ("/v1/decisions", {"prompt": "a", "labels": ["b", " the"]}),
        ("/classify", {"input": "a", "labels": ["b", " the"]}),
        ("/score", {"text_1": "a", "text_2": ["b", "c"]}),
        ("/rerank", {"query": "a", "documents": ["b", "c"]}),
    ],
)
def test_the_rest_is_answered_as_by_an_engine_that_generates(pooling, client, path, body):
    one, other = (each.post(path, body) for each in (pooling, client))
    assert one.status_code == other.status_code == 200, one.text
    for key in ("data", "results"):
        if key in other.json():
            assert _rounded(one.json()[key]) == _rounded(other.json()[key])


def _rounded(value):
    """Numbers to four places: batches may be cut in different ways."""
    match value:
        case dict():
            return {key: _rounded(each) for key, each in value.items()}
        case list():
            return [_rounded(each) for each in value]
        case float():
            return pytest.approx(value, abs=1e-4)
    return value
