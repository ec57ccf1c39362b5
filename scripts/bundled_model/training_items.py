"""The kinds of training item: the tasks that evaluation asks, and some that only teach."""

from collections.abc import Callable, Mapping
from random import Random

from scripts.evaluation.items import stories, sums, tool_calls
from scripts.evaluation.items.item import Item
from scripts.evaluation.items.mixture import GENERATORS

STORY_REQUESTS = (
    "Tell me a story about a {trait} {animal}.",
    "Write a short story about a {animal}.",
    "Tell me a story about {name} the {animal}.",
    "Can you tell me a story about {name}?",
)


def make_small_sum(rng: Random) -> Item:
    """A sum with at least one number below ten, as a chat question."""
    numbers = [rng.randint(0, sums.SMALLEST - 1), rng.randint(0, sums.LARGEST)]
    rng.shuffle(numbers)
    return sums.ask_sum(rng, *numbers)


def make_plain_sum(rng: Random) -> Item:
    """A sum as plain text, `37 + 45 = 82.`; shares its keys with sums asked in a chat."""
    a, b = rng.randint(sums.SMALLEST, sums.LARGEST), rng.randint(sums.SMALLEST, sums.LARGEST)
    return Item(
        kind="plain_sum",
        key=f"sum {min(a, b)} {max(a, b)}",
        prompt=f"{a} + {b} =",
        answer=f" {a + b}.",
    )


def make_two_tool_calls(rng: Random) -> Item:
    """A question about two cities, answered by two calls in one turn."""
    name = rng.choice(("get_weather", "get_time"))
    description, make = tool_calls.TOOLS[name]
    one = make(rng)
    two = make(rng)
    topic = "weather" if name == "get_weather" else "time"
    cities = f"{one.arguments['city']} and {two.arguments['city']}"
    return Item(
        kind="two_tool_calls",
        key=f"two {name} {cities}",
        messages=({"role": "user", "content": f"What is the {topic} in {cities}?"},),
        tools=(description,),
        reasoning=f"The user asks for two cities. I call {name} twice.",
        answer=f"{one.text}\n{two.text}",
    )


def make_story_request(rng: Random) -> Item:
    """A chat question for a story, answered by a short one."""
    cast = stories.draw_cast(rng)
    question = rng.choice(STORY_REQUESTS).format(**vars(cast))
    return Item(
        kind="chat",
        key=cast.key,
        messages=({"role": "user", "content": question},),
        reasoning=f"The user wants a story. I will write about {cast.name} the {cast.animal}.",
        answer=stories.tell(cast, rng, 1),
    )


TRAINING_GENERATORS: Mapping[str, Callable[[Random], Item]] = {
    **GENERATORS,
    "small_sum": make_small_sum,
    "plain_sum": make_plain_sum,
    "two_tool_calls": make_two_tool_calls,
    "story_request": make_story_request,
}
