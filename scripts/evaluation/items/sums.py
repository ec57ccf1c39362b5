"""Generates sums of two two-digit numbers: the smallest questions with one right answer."""

from random import Random

from scripts.evaluation.items.item import Item

SMALLEST, LARGEST = 10, 99
QUESTIONS = (
    "What is {a} + {b}?",
    "How much is {a} + {b}?",
    "{a} + {b} = ?",
    "Add {a} and {b}.",
    "Please add {a} and {b}.",
    "What is the sum of {a} and {b}?",
)


def written_carry(a: int, b: int) -> str:
    """The sum as done on paper, units first."""
    units = a % 10 + b % 10
    carry, tens = units // 10, a // 10 + b // 10
    first = f"{a % 10} + {b % 10} = {units}, so the last digit is {units % 10}"
    if not carry:
        return f"{first}. {a // 10} + {b // 10} = {tens}."
    return f"{first} and I carry 1. {a // 10} + {b // 10} + 1 = {tens + 1}."


def make_sum(rng: Random) -> Item:
    """A sum of two two-digit numbers as a chat question.

    The key is the unordered pair: when 37 + 45 is held out, so is 45 + 37.
    """
    return ask_sum(rng, rng.randint(SMALLEST, LARGEST), rng.randint(SMALLEST, LARGEST))


def ask_sum(rng: Random, a: int, b: int) -> Item:
    """A chat question for the sum of these numbers."""
    question = rng.choice(QUESTIONS).format(a=a, b=b)
    return Item(
        kind="sum",
        key=f"sum {min(a, b)} {max(a, b)}",
        messages=({"role": "user", "content": question},),
        reasoning=written_carry(a, b),
        answer=f"{a} + {b} = {a + b}.",
    )
