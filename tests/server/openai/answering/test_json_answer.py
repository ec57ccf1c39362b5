"""A client's request id comes back in a header, whatever characters it has."""

from urllib.parse import unquote

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxinfer.server.openai.answering.json_answer import id_header, json_answer


@pytest.mark.parametrize(
    ("given", "header"),
    [
        *[("plain", "plain"), ("two words, 100% ok", "two words, 100% ok")],
        *[("blank at the end ", "blank at the end%20"), ("  ", "%20%20"), (" a", "%20a")],
        *[("a\r\nSet-Cookie: b", "a%0D%0ASet-Cookie: b"), ("\x00\x7f", "%00%7F"), ("ü", "%C3%BC")],
        ("\ud800", "?"),
    ],
)
def test_what_no_header_can_hold_is_percent_encoded(given, header):
    assert id_header(given) == {"X-Request-Id": header}


def test_no_id_is_no_header():
    assert id_header(None) == id_header("") == {}


@given(st.text(min_size=1, max_size=40))
def test_any_id_can_be_sent(text):
    answer = json_answer({}, text)
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
    connection.next_event()
    assert connection.send(h11.Response(status_code=200, headers=answer.raw_headers))
    if "%" not in text:
        assert unquote(answer.headers["x-request-id"]) == text.encode("utf-8", "replace").decode()
