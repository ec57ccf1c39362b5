"""The pieces of a completion's output, whether or not a parser splits its text."""

from collections.abc import Sequence

from jaxinfer.outputs import CompletionOutput, Content, Piece


def pieces_of(completion: CompletionOutput) -> Sequence[Piece]:
    """Reasoning, content and calls; all text is content where no parser is asked for."""
    if completion.pieces is not None:
        return completion.pieces
    return [Content(completion.text)] if completion.text else ()
