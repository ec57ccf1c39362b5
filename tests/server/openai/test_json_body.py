"""Bodies that would keep the event loop busy are refused before they do."""

import pytest

from jaxinfer.server.openai import json_body
from jaxinfer.server.openai.errors import ApiError
from jaxinfer.server.openai.json_body import decode


@pytest.mark.parametrize(
    "body",
    [
        b'{"prompt":[' + b"1," * 8_000_000 + b"1]}",
        b'{"prompt":[' + b"[]," * 1_000_000 + b"[]]}",
        b"[" * 10_000_000,
    ],
    ids=["values", "lists", "depth"],
)
def test_a_body_of_very_many_values_is_refused_before_it_is_parsed(body, monkeypatch):
    monkeypatch.setattr(json_body.msgspec.json, "decode", lambda body: pytest.fail("it is parsed"))
    with pytest.raises(ApiError):
        decode(body)


def test_a_body_of_very_many_fields_is_refused():
    with pytest.raises(ApiError, match="1000 fields"):
        decode(b"{" + b",".join(b'"%d":1' % i for i in range(1000)) + b"}")


def test_what_requests_need_is_taken():
    assert len(decode(b'{"prompt":[' + b"[7,8]," * 1023 + b"[1]]}")["prompt"]) == 1024
    deep = b'{"a":' * 63 + b"[]" + b"}" * 63
    assert decode(deep)
    with pytest.raises(ApiError, match="64 levels"):
        decode(b"[" + deep + b"]")
