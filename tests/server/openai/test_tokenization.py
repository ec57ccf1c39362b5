"""`/tokenize` and `/detokenize` are what prompts go through."""

import pytest

MESSAGES = [{"role": "user", "content": "A cat 🐈 said 你好"}]


def test_texts_become_tokens_and_back(client, engine):
    text = "A cat 🐈 said 你好 <|im_end|>"
    answer = client.post("/tokenize", {"prompt": text, "return_token_strs": True}).json()
    assert answer["tokens"] == engine.tokenizer.encode(text)
    assert answer["count"] == len(answer["tokens"]) == len(answer["token_strs"])
    assert answer["max_model_len"] == 256
    assert client.post("/detokenize", {"tokens": answer["tokens"]}).json() == {"prompt": text}


def test_a_conversation_has_the_tokens_that_chat_counts(client):
    count = client.post("/tokenize", {"messages": MESSAGES}).json()["count"]
    body = {"messages": MESSAGES, "max_tokens": 1}
    usage = client.post("/v1/chat/completions", body).json()["usage"]
    assert usage["prompt_tokens"] == count


def test_texts_may_be_longer_than_the_model(client):
    assert client.post("/tokenize", {"prompt": "word " * 5000}).json()["count"] >= 5000


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {}),
        ("/tokenize", {"prompt": "a", "messages": MESSAGES}),
        ("/tokenize", {"prompt": 5}),
        ("/detokenize", {"tokens": [2048]}),
        ("/detokenize", {"tokens": [-1]}),
        ("/detokenize", {"tokens": "a"}),
        ("/detokenize", {}),
    ],
)
def test_what_cannot_be_converted_is_refused(client, path, body):
    assert client.post(path, body).status_code == 400
