"""`/v1/completions`: prompts of all kinds, echo, log-probabilities, several choices, streams."""

import pytest

from tests.server.openai.events import events_of, texts_of

GREEDY = {"model": "tiny", "temperature": 0, "max_tokens": 6}
STORY = "Once upon a time"


def complete(client, prompt, **fields):
    answer = client.post("/v1/completions", {**GREEDY, "prompt": prompt, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


def stream(client, prompt, **fields):
    answer = client.post("/v1/completions", {**GREEDY, "prompt": prompt, "stream": True, **fields})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    return events_of(answer.text)


def test_prompts_of_all_kinds_and_lengths_give_the_same(client, engine):
    ids = engine.tokenizer.encode(STORY)
    alone = complete(client, STORY)["choices"][0]["text"]
    assert alone
    assert complete(client, ids)["choices"][0]["text"] == alone
    both = complete(client, [ids, [*ids, 5], ids[:1]])["choices"]
    assert [choice["index"] for choice in both] == [0, 1, 2]
    assert both[0]["text"] == alone
    texts = complete(client, ["Hello", STORY])
    assert texts["choices"][1]["text"] == alone
    hello = len(engine.tokenizer.encode("Hello"))
    assert texts["usage"]["prompt_tokens"] == hello + len(ids)
    assert texts["usage"]["completion_tokens"] == 12
    assert texts["usage"]["total_tokens"] == 12 + hello + len(ids)


def test_cached_tokens_are_reported(client):
    prompt = list(range(100, 140))
    complete(client, prompt)
    cached = complete(client, prompt)["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert 0 < cached < 40
    salted = complete(client, prompt, cache_salt="mine")
    assert salted["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


@pytest.mark.parametrize("max_tokens", [0, 1])
def test_echo_scores_the_prompt(client, engine, max_tokens):
    ids = engine.tokenizer.encode(STORY)
    answer = complete(client, STORY, echo=True, logprobs=2, max_tokens=max_tokens)
    (choice,) = answer["choices"]
    assert choice["text"].startswith(STORY)
    assert choice["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == max_tokens
    scores = choice["logprobs"]
    assert "".join(scores["tokens"]) == choice["text"]
    assert len(scores["tokens"]) == len(ids) + max_tokens
    assert scores["token_logprobs"][0] is None
    assert scores["top_logprobs"][0] is None
    for token, offset in zip(scores["tokens"], scores["text_offset"], strict=True):
        assert choice["text"][offset:].startswith(token)
    for token, value, top in list(
        zip(scores["tokens"], scores["token_logprobs"], scores["top_logprobs"], strict=True)
    )[1:]:
        assert top[token] == value
    if max_tokens:  # greedy: exactly the largest
        assert max(scores["top_logprobs"][-1].values()) == scores["token_logprobs"][-1]


def test_echo_of_token_ids_decodes_them(client, engine):
    (choice,) = complete(client, engine.tokenizer.encode(STORY), echo=True)["choices"]
    assert choice["text"].startswith(STORY)


def test_a_seed_repeats_choices_whatever_runs_beside(client):
    fields = {"temperature": 1.0, "seed": 7, "n": 3}
    first = [choice["text"] for choice in complete(client, STORY, **fields)["choices"]]
    assert len(set(first)) > 1
    again = complete(client, ["Hello", STORY], **fields)["choices"]
    assert [choice["index"] for choice in again] == list(range(6))
    assert [choice["text"] for choice in again[3:]] == first


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"echo": True, "logprobs": 1},
        {"n": 3, "temperature": 1.2, "seed": 3, "max_tokens": 20},
        {"logprobs": 0, "return_token_ids": True, "max_tokens": 20},
        {"echo": True, "max_tokens": 0},
    ],
)
def test_a_stream_adds_up_to_the_whole_answer(client, fields):
    prompts = ["A cat 🐈 said 你好", "Hello"]
    whole = complete(client, prompts, **fields)
    events = stream(client, prompts, stream_options={"include_usage": True}, **fields)
    choices = whole["choices"]
    assert texts_of(events, len(choices)) == [choice["text"] for choice in choices]
    usage = events.pop()
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    for choice in choices:
        parts = [e["choices"][0] for e in events if e["choices"][0]["index"] == choice["index"]]
        assert [part["finish_reason"] for part in parts[:-1]] == [None] * (len(parts) - 1)
        assert parts[-1]["finish_reason"] == choice["finish_reason"]
        assert parts[-1]["text"] == ""
        if choice["logprobs"]:
            for name in ("tokens", "text_offset", "token_logprobs"):
                streamed = [v for p in parts if p["logprobs"] for v in p["logprobs"][name]]
                expected = choice["logprobs"][name]
                assert streamed == (
                    pytest.approx(expected, abs=1e-4) if name == "token_logprobs" else expected
                )
        if choice["token_ids"] is not None:
            assert [t for p in parts for t in p.get("token_ids", [])] == choice["token_ids"]
            assert parts[0]["prompt_token_ids"] == choice["prompt_token_ids"]


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 23])
def test_characters_of_several_tokens_stream_as_they_are(client, engine, max_tokens):
    """Emoji, CJK, a literal U+FFFD and what is cut within them: any order of their bytes."""
    tokens = sorted({t for char in "🐈你好\ufffd" for t in engine.tokenizer.encode(char)})
    fields = {"allowed_token_ids": tokens, "temperature": 100, "seed": 5, "n": 4}
    fields |= {"max_tokens": max_tokens, "logprobs": 0, "ignore_eos": True}
    whole = complete(client, STORY, **fields)["choices"]
    assert any("\ufffd" in choice["text"] for choice in whole)
    events = stream(client, STORY, **fields)
    assert texts_of(events, 4) == [choice["text"] for choice in whole]
    for choice in whole:
        offsets = choice["logprobs"]["text_offset"]
        assert offsets == sorted(offsets)
        assert offsets[-1] <= len(choice["text"])


def test_usage_can_be_in_every_chunk(client):
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = stream(client, STORY, stream_options=options)
    counts = [event["usage"]["completion_tokens"] for event in events]
    assert counts == sorted(counts)
    assert counts[0] == 1
    assert counts[-1] == 6
    alone = {"continuous_usage_stats": True}
    for options in ({}, {"stream_options": alone}, {"stream_options": {"include_usage": False}}):
        assert not any("usage" in event for event in stream(client, STORY, **options))
    events = stream(client, STORY, stream_options={"include_usage": True})
    assert [event["usage"] is None for event in events[:-1]] == [True] * (len(events) - 1)
    assert events[-1]["usage"]["completion_tokens"] == 6


def test_what_was_not_asked_for_is_null(client):
    answer = complete(client, STORY)
    assert answer["service_tier"] is None
    names = ("logprobs", "stop_reason", "token_ids", "prompt_token_ids", "prompt_logprobs")
    assert [answer["choices"][0][name] for name in names] == [None] * 5


def test_stop_strings_and_tokens_end_an_answer(client, engine):
    text = complete(client, STORY, max_tokens=12)["choices"][0]["text"]
    stop = text[7:10]  # over token boundaries
    whole = complete(client, STORY, max_tokens=12, stop=["☃", stop])
    (choice,) = whole["choices"]
    assert choice["text"] == text[: text.index(stop)]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)
    events = stream(client, STORY, max_tokens=12, stop=["☃", stop])
    assert texts_of(events) == [choice["text"]]
    assert events[-1]["choices"][0]["stop_reason"] == stop
    kept = complete(client, STORY, max_tokens=12, stop=stop, include_stop_str_in_output=True)
    assert kept["choices"][0]["text"] == choice["text"] + stop
    token = engine.tokenizer.encode(text)[0]
    (choice,) = complete(client, STORY, stop_token_ids=[token])["choices"]
    assert choice["stop_reason"] == token


def test_tokens_can_be_biased_allowed_and_banned(client, engine):
    token = engine.tokenizer.encode("cat")[0]
    biased = complete(client, STORY, logit_bias={str(token): 100}, return_token_ids=True)
    assert biased["choices"][0]["token_ids"] == [token] * 6
    allowed = complete(client, STORY, allowed_token_ids=[token], return_token_ids=True)
    assert allowed["choices"][0]["token_ids"] == [token] * 6
    first = complete(client, STORY, return_token_ids=True, max_tokens=1)["choices"][0]
    banned = complete(client, STORY, bad_words=[first["text"]], max_tokens=1)
    assert banned["choices"][0]["text"] != first["text"]


def test_tokens_can_be_named_by_id(client):
    answer = complete(client, STORY, logprobs=1, return_tokens_as_token_ids=True)
    assert all(t.startswith("token_id:") for t in answer["choices"][0]["logprobs"]["tokens"])


def test_prompt_logprobs_by_token_id(client, engine):
    ids = engine.tokenizer.encode(STORY)
    (choice,) = complete(client, ids, prompt_logprobs=1)["choices"]
    assert choice["prompt_logprobs"][0] is None
    assert [str(i) in e for i, e in zip(ids[1:], choice["prompt_logprobs"][1:], strict=True)]


def test_a_prompt_is_scored_from_a_token_on(client, engine):
    ids = engine.tokenizer.encode(STORY)
    (whole,) = complete(client, ids, prompt_logprobs=1)["choices"]
    (choice,) = complete(client, ids, prompt_logprobs=1, prompt_logprob_start=2)["choices"]
    assert choice["prompt_logprobs"][:2] == [None, None]
    for ours, theirs in zip(
        choice["prompt_logprobs"][2:], whole["prompt_logprobs"][2:], strict=True
    ):
        assert {k: v["rank"] for k, v in ours.items()} == {k: v["rank"] for k, v in theirs.items()}
    refused = client.post(
        "/v1/completions", {**GREEDY, "prompt": ids, "prompt_logprob_start": 2, "stream": False}
    )
    assert refused.status_code == 400
    assert "prompt_logprob_start" in refused.json()["error"]["message"]


@pytest.mark.parametrize("n", [1, 2])
def test_an_answer_begins_with_the_tokens_that_it_is_forced_to(client, n):
    fields = {"logprobs": 1, "return_token_ids": True}
    (drawn,) = complete(client, STORY, **fields)["choices"]
    forced = drawn["token_ids"][:3]
    answer = complete(client, STORY, n=n, forced_token_ids=forced, **fields)
    for choice in answer["choices"]:
        assert (choice["text"], choice["token_ids"]) == (drawn["text"], drawn["token_ids"])
        values, expected = (c["logprobs"]["token_logprobs"] for c in (choice, drawn))
        assert values == pytest.approx(expected, abs=1e-4)
    events = stream(client, STORY, forced_token_ids=forced)
    assert texts_of(events)[0] == drawn["text"]


def test_a_client_request_id_is_returned_and_is_no_key(client):
    fields = {"headers": {"X-Request-Id": "mine"}}
    first, second = (
        client.post("/v1/completions", {**GREEDY, "prompt": STORY}, **fields) for _ in range(2)
    )
    assert first.headers["x-request-id"] == second.headers["x-request-id"] == "mine"
    assert first.json()["id"] != second.json()["id"]
    body = {**GREEDY, "prompt": STORY, "request_id": "own"}
    assert client.post("/v1/completions", body).headers["x-request-id"] == "own"
