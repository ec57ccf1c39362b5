"""Texts of answers, and what a parser makes of them in one part or in many."""

import itertools

from hypothesis import strategies as st

from jaxinfer.outputs import CallArguments, Content, Reasoning

FRAGMENTS = [
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<function=f>",
    "<function=g>",
    "<tool_call>\n<function=f>\n<parameter=text>\n",
    "\n</parameter>\n",
    "\n</parameter>\n</function>\n</tool_call>",
    "<parameter=maybe>\n",
    "null",
    "None",
    "<function=",
    "<parameter=text>",
    "<parameter=number>",
    "</parameter>",
    "</function>",
    '{"name": "f", "arguments": {',
    '{"name": "f", "arguments": {}}',
    '{"arguments": {"a": 1}, "name": "g"}',
    '{"name": "f", "parameters": {"a": 1}}',
    '{"name": "f", "arguments": "{}"}',
    ",",
    '"key": "value"',
    "}",
    "]",
    "[",
    '"',
    "\\",
    "<",
    ">",
    "/",
    "\n",
    "\n\n",
    " ",
    "7",
    "true",
    "word ",
    "naïve 東京 👨‍👩‍👧 \ufffd",
]

SCHEMAS = [
    {
        "type": "function",
        "function": {
            "name": "f",
            "parameters": {
                "type": "object",
                "properties": {
                    "text": {"type": "string"},
                    "number": {"type": "integer"},
                    "maybe": {"type": ["string", "null"]},
                },
            },
        },
    }
]

texts = st.lists(st.sampled_from(FRAGMENTS), max_size=24).map("".join)


@st.composite
def split_texts(draw):
    """A text and parts of it, some of them empty."""
    text = draw(texts)
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=12)))
    if draw(st.booleans()):
        cuts = list(range(len(text)))
    return text, [text[a:b] for a, b in itertools.pairwise([0, *cuts, len(text)])]


def joined(pieces):
    """The pieces, with what follows each other put together."""
    whole = []
    for piece in pieces:
        last = whole[-1] if whole else None
        if isinstance(piece, (Reasoning, Content)) and isinstance(last, type(piece)):
            whole[-1] = type(piece)(last.text + piece.text)
        elif isinstance(piece, CallArguments) and isinstance(last, CallArguments):
            assert last.index == piece.index
            whole[-1] = CallArguments(piece.index, last.text + piece.text)
        else:
            whole.append(piece)
    return whole


def parse(parser, parts):
    """All pieces of a text that comes in these parts."""
    pieces = [piece for part in parts for piece in parser.feed(part)]
    return joined([*pieces, *parser.finish()])
