"""Keeps sequences of tests from resting, whose drafts are hardly ever right."""

from jaxinfer.serving.requests import draft_record
from jaxinfer.serving.requests.recent_drafts import RecentDrafts


def begin_with_drafts(patch):
    """New sequences begin with drafts whatever those before them gained; `patch` undoes it."""
    patch.setattr(RecentDrafts, "begins_resting", lambda self: False)


def always_draft(patch):
    """No sequence rests, as those of a random head soon would."""
    begin_with_drafts(patch)
    patch.setattr(draft_record, "LEAST_GAIN", 0.0)
