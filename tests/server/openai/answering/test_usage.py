"""The usage of an answer mentions drafts where there were some."""

from jaxinfer.outputs import CompletionOutput, RequestMetrics, RequestOutput
from jaxinfer.server.openai.answering.usage import UsageCount


def output(drafted, accepted, num_tokens=2):
    return RequestOutput(
        request_id="a",
        prompt="",
        prompt_token_ids=[1, 2, 3],
        outputs=[CompletionOutput(index=0, text="", token_ids=[1] * num_tokens)],
        metrics=RequestMetrics(0.0, num_draft_tokens=drafted, num_accepted_tokens=accepted),
    )


def test_drafts_of_all_prompts_are_counted_once():
    count = UsageCount()
    for index, drafted, accepted in ((0, 4, 1), (0, 9, 3), (1, 2, 2)):
        count.add(index, output(drafted, accepted))
    assert count.usage()["completion_tokens"] == 6
    assert count.usage()["completion_tokens_details"] == {
        "reasoning_tokens": 0,
        "accepted_prediction_tokens": 5,
        "rejected_prediction_tokens": 6,
    }


def test_without_drafts_none_is_mentioned():
    count = UsageCount(has_reasoning=True)
    count.add(0, output(0, 0))
    assert count.usage()["completion_tokens_details"] == {"reasoning_tokens": 0}
