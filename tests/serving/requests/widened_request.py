"""A request with a field that no engine knows, and what becomes of it on its way."""

from dataclasses import dataclass

from jaxinfer.sampling_params import SamplingParams
from jaxinfer.serving.engine.open_requests import OpenRequests
from jaxinfer.serving.requests.new_request import NewRequest, Prompt

PARAMS = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class WidenedRequest(NewRequest):
    """A request with one field more."""

    adapter: str | None = None


def widened(**options):
    prompt = Prompt([1, 2, 3], "its text", "salt")
    return WidenedRequest(prompt=prompt, params=PARAMS, adapter="fine-tuned", **options)


def note_arrivals(monkeypatch):
    """The records as the scheduler sees them, in the order in which requests begin to wait."""
    records = []
    add = OpenRequests.add

    def note(self, group):
        records.append(group.completions[0].request.new)
        add(self, group)

    monkeypatch.setattr(OpenRequests, "add", note)
    return records
