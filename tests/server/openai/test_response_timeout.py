"""A response whose own time is over is incomplete, and has the text that there is."""

import pytest

BODY = {"input": "Once upon a time", "timeout": 1e-6}


def test_a_response_whose_time_is_over_is_incomplete(client):
    answer = client.post("/v1/responses", BODY)
    assert answer.status_code == 200, answer.text
    response = answer.json()
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "abort"}


@pytest.mark.parametrize("seconds", [0, -1, "1", 1e7])
def test_what_is_no_time_is_named(client, seconds):
    answer = client.post("/v1/responses", {**BODY, "timeout": seconds})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "timeout")
