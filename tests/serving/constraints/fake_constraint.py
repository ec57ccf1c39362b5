"""Constraints that make rows host-dependent and change no token."""

from jaxinfer.serving.constraints.constraint import NextToken


class ReadsTokens:
    """Wants to read all outputs before one of a number or a later one."""

    def __init__(self, starts_at=0):
        self.starts_at = starts_at

    def after(self, token_ids):
        del token_ids
        return NextToken()


class FakeSource:
    """A `ConstraintSource` for which bad words are all there is."""

    def make(self, params, prompt, stage, *, calls):
        del prompt, stage, calls
        return ReadsTokens() if params.bad_words else None

    def start_all(self, requests):
        del requests
