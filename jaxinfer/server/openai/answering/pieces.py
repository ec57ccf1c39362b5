"""The pieces of a completion: reasoning, content and calls."""

from collections.abc import Sequence

from jaxinfer.outputs import CompletionOutput, Content, Piece, Reasoning


def pieces_of(completion: CompletionOutput) -> Sequence[Piece]:
    """Reasoning, content and calls; all text is content where no parser is asked for."""
    if completion.pieces is not None:
        return completion.pieces
    return [Content(completion.text)] if completion.text else ()


def shown_pieces(completion: CompletionOutput, *, shows_reasoning: bool) -> Sequence[Piece]:
    """The pieces of an answer that the client wants to see."""
    pieces = pieces_of(completion)
    return [each for each in pieces if shows_reasoning or not isinstance(each, Reasoning)]
