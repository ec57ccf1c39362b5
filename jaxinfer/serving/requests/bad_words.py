"""The spellings of a banned word, each of which has tokens of its own."""


def bad_word_spellings(word: str) -> list[str]:
    """The texts whose tokens a bad word bans: the word at the start of a text, and after a space.

    These are different tokens. A word that begins with white space is banned as it is: it says
    itself what stands before it, and a line break without its white space is nothing at all.
    """
    return [word] if word[:1].isspace() else [word, " " + word]
