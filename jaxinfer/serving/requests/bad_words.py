"""The spellings of a banned word, with and without a leading space: their tokens differ."""


def bad_word_spellings(word: str) -> list[str]:
    """The spellings that `bad_words` bans: the word at the start of a text, and after a space.

    A word with leading white space has one spelling: it already states what precedes it.
    """
    return [word] if word[:1].isspace() else [word, " " + word]
