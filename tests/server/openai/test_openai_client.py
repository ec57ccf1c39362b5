"""OpenAI's own client against a real server."""

import re
from pathlib import Path

import openai
import pytest

from tests.server.openai.http_server import serving

USER = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def api(make_client):
    app = make_client(api_keys=("sesame",)).app
    with (
        serving(app) as port,
        openai.OpenAI(
            base_url=f"http://127.0.0.1:{port}/v1", api_key="sesame", max_retries=0
        ) as api,
    ):
        yield api


def test_models(api):
    assert [model.id for model in api.models.list()] == ["tiny"]
    assert api.models.retrieve("tiny").id == "tiny"


def test_completions_plain_and_streamed(api):
    fields = {"model": "tiny", "prompt": "Once upon", "temperature": 0, "max_tokens": 8}
    whole = api.completions.create(**fields, logprobs=1)
    assert whole.usage.completion_tokens == 8
    assert len(whole.choices[0].logprobs.tokens) == 8
    chunks = list(api.completions.create(**fields, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text


def test_chat_plain_and_streamed(api):
    fields = {"model": "tiny", "messages": USER, "temperature": 0, "max_tokens": 8}
    whole = api.chat.completions.create(
        **fields, logprobs=True, top_logprobs=1, extra_body={"top_k": 5, "ignore_eos": True}
    )
    assert whole.choices[0].finish_reason == "length"
    assert len(whole.choices[0].logprobs.content) == 8
    stream = api.chat.completions.create(
        **fields, stream=True, stream_options={"include_usage": True}
    )
    *chunks, last = stream
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == (whole.choices[0].message.content or "")
    assert last.usage == whole.usage or last.usage.completion_tokens == 8


def test_responses_plain_and_streamed(api):
    fields = {"model": "tiny", "input": "hello", "temperature": 0, "max_output_tokens": 40}
    whole = api.responses.create(**fields)
    assert whole.output_text
    events = list(api.responses.create(**fields, stream=True))
    assert events[-1].response.output_text == whole.output_text
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == whole.output_text


def test_embeddings_as_numbers_and_as_the_client_asks_for_them(api):
    fields = {"model": "tiny", "input": ["hello", "a red kite"]}
    decoded = api.embeddings.create(**fields)  # base64 on the way
    numbers = api.embeddings.create(**fields, encoding_format="float", user="me")
    assert [each.embedding for each in decoded.data] == [each.embedding for each in numbers.data]
    assert [each.index for each in numbers.data] == [0, 1]
    assert len(numbers.data[0].embedding) > 100
    text = api.embeddings.create(**fields, encoding_format="base64").data[0].embedding
    assert isinstance(text, str)
    assert numbers.usage.prompt_tokens == numbers.usage.total_tokens > 2
    with pytest.raises(openai.BadRequestError) as caught:
        api.embeddings.create(**fields, dimensions=8)
    assert caught.value.param == "dimensions"


def test_errors_are_of_the_clients_own_types(api):
    with pytest.raises(openai.BadRequestError) as caught:
        api.chat.completions.create(model="tiny", messages=USER, temperature=-1)
    assert caught.value.param == "temperature"
    with pytest.raises(openai.NotFoundError):
        api.chat.completions.create(model="gpt", messages=USER)
    with pytest.raises(openai.AuthenticationError):
        api.with_options(api_key="guess").models.list()


def test_the_readmes_example(api, capsys):
    readme = (Path(__file__).parents[3] / "README.md").read_text()
    (block,) = [b for b in re.findall(r"```python\n(.*?)```", readme, re.DOTALL) if "openai" in b]
    block = block.replace("http://127.0.0.1:8000/v1", str(api.base_url))
    block = block.replace('"none"', '"sesame"').replace('"jaxinfer"', '"tiny"')
    exec(block.replace("stream=True", "stream=True, max_tokens=60"), {})  # our own README
    assert capsys.readouterr().out
