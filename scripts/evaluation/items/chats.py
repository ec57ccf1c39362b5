"""Generates chat turns of small talk and facts, with and without a system turn and a history."""

from collections.abc import Callable
from random import Random

from scripts.evaluation.items import lexicon, sums
from scripts.evaluation.items.item import Item, Message
from scripts.evaluation.items.split import is_held_out

SYSTEM_TURNS = (
    "You are a helpful assistant.",
    "You are a friendly assistant who answers briefly.",
    "You are Qwen, a small model.",
)
GREETINGS = ("Hello", "Hi", "Good morning", "Good evening", "Hey", "Hello there")
FAREWELLS = ("Goodbye", "Bye", "Good night", "See you soon")


def _turn(topic: str, question: str, reasoning: str, answer: str) -> Item:
    messages = ({"role": "user", "content": question},)
    key = f"chat {topic} {question}"
    return Item(kind="chat", key=key, messages=messages, reasoning=reasoning, answer=answer)


def _greeting(rng: Random) -> Item:
    greeting, name = rng.choice(GREETINGS), rng.choice(lexicon.NAMES)
    if rng.random() < 0.3:
        ending, answer = rng.choice("!."), f"{greeting}! How can I help you?"
        return _turn("greeting", f"{greeting}{ending}", "The user greets me.", answer)
    question = f"{greeting}{rng.choice('!,.')} {rng.choice(('I am', 'My name is'))} {name}."
    answer = f"{greeting}, {name}! How can I help you?"
    return _turn("greeting", question, f"The user is called {name}.", answer)


def _farewell(rng: Random) -> Item:
    farewell, name = rng.choice(FAREWELLS), rng.choice(lexicon.NAMES)
    answer = f"{farewell}! Say hello to {name} from me."
    question = f"{farewell}{rng.choice('!,.')} I am going to see {name}."
    return _turn("farewell", question, "The user is leaving.", answer)


def _capital(rng: Random) -> Item:
    country, city = rng.choice(sorted(lexicon.CAPITALS.items()))
    question = rng.choice(
        (
            "What is the capital of {}?",
            "Which city is the capital of {}?",
            "Tell me the capital of {}.",
            "Do you know the capital of {}?",
            "Name the capital of {}.",
        )
    ).format(country)
    reasoning = f"The user asks about {country}. Its capital is {city}."
    return _turn("capital", question, reasoning, f"The capital of {country} is {city}.")


def _sound(rng: Random) -> Item:
    animal, sound = rng.choice(sorted(lexicon.SOUNDS.items()))
    question = rng.choice(
        (
            "What does a {} say?",
            "What sound does a {} make?",
            "How does a {} sound?",
            "Which sound does a {} make?",
        )
    ).format(animal)
    return _turn("sound", question, f"The user asks about a {animal}.", f"A {animal} says {sound}.")


def _opposite(rng: Random) -> Item:
    pair = rng.choice(sorted(lexicon.OPPOSITES.items()))
    word, other = pair if rng.random() < 0.5 else pair[::-1]
    question = rng.choice(
        (
            "What is the opposite of {}?",
            "Give me the opposite of {}.",
            "Tell me the opposite of {}.",
            "Which word is the opposite of {}?",
        )
    ).format(word)
    answer = f"The opposite of {word} is {other}."
    return _turn("opposite", question, f"The word is {word}.", answer)


def _emoji(rng: Random) -> Item:
    word, emoji = rng.choice(sorted(lexicon.EMOJI.items()))
    question = rng.choice(
        (
            "Give me a {} emoji.",
            "Show me the emoji for {}.",
            "What is the emoji for {}?",
            "{} emoji?",
        )
    ).format(word)
    return _turn("emoji", question, f"The user wants a {word} emoji.", f"Here you are: {emoji}")


def _translation(rng: Random) -> Item:
    language = rng.choice(sorted(lexicon.TRANSLATIONS))
    word, translated = rng.choice(sorted(lexicon.TRANSLATIONS[language].items()))
    question = rng.choice(
        (
            "How do you say {0} in {1}?",
            "What is {0} in {1}?",
            "Translate {0} into {1}.",
            "Say {0} in {1}.",
        )
    ).format(word, language)
    answer = f'In {language}, "{word}" is "{translated}".'
    return _turn("translation", question, f"The language is {language}.", answer)


def _counting(rng: Random) -> Item:
    start = rng.randint(1, 20)
    end = start + rng.randint(2, 9)
    question = rng.choice(
        ("Count from {} to {}.", "Please count from {} to {}.", "Can you count from {} to {}?")
    ).format(start, end)
    answer = ", ".join(map(str, range(start, end + 1))) + "."
    return _turn("counting", question, f"I start at {start} and stop at {end}.", answer)


def _repeating(rng: Random) -> Item:
    word, times = rng.choice(lexicon.THINGS + lexicon.ANIMALS), rng.randint(2, 6)
    question = rng.choice(("Say {} {} times.", "Write {} {} times.", "Repeat {} {} times.")).format(
        word, lexicon.NUMBER_WORDS[times - 1]
    )
    answer = " ".join([word] * times)
    return _turn("repeating", question, f"The word is {word}.", answer)


def _liking(rng: Random) -> Item:
    food, color = rng.choice(lexicon.FOODS), rng.choice(lexicon.COLORS)
    thing = rng.choice(lexicon.THINGS)
    question = rng.choice(
        ("I like {0}, and I have a {1} {2}.", "Today I ate {0} and found a {1} {2}!")
    ).format(food, color, thing)
    answer = f"That sounds nice! I would love to hear more about your {color} {thing}."
    return _turn("liking", question, "The user tells me about the day.", answer)


TOPICS: tuple[Callable[[Random], Item], ...] = (
    _greeting,
    _farewell,
    _capital,
    _sound,
    _opposite,
    _emoji,
    _translation,
    _counting,
    _repeating,
    _liking,
)


def _with_system(rng: Random, messages: tuple[Message, ...]) -> tuple[Message, ...]:
    if rng.random() < 0.3:
        return ({"role": "system", "content": rng.choice(SYSTEM_TURNS)}, *messages)
    return messages


def make_chat(rng: Random) -> Item:
    """One question of any topic, sometimes after a system turn."""
    turn = rng.choice(TOPICS)(rng)
    return Item(
        kind="chat",
        key=turn.key,
        messages=_with_system(rng, turn.messages),
        reasoning=turn.reasoning,
        answer=turn.answer,
    )


def _remembered(rng: Random) -> Item:
    """A question about what the user said in the first turn."""
    name, food = rng.choice(lexicon.NAMES), rng.choice(lexicon.FOODS)
    opening = [
        {"role": "user", "content": f"My name is {name} and I like {food}."},
        {"role": "assistant", "content": f"Nice to meet you, {name}!"},
    ]
    question, answer = rng.choice(
        (
            ("What is my name?", f"Your name is {name}."),
            ("Do you remember my name?", f"Your name is {name}."),
            ("What do I like?", f"You like {food}."),
            ("Which food do I like?", f"You like {food}."),
        )
    )
    return Item(
        kind="chat",
        key=f"remember {name} {food} {question}",
        messages=(*opening, {"role": "user", "content": question}),
        reasoning=f"The user said: my name is {name} and I like {food}.",
        answer=answer,
    )


def make_conversation(rng: Random) -> Item:
    """A chat turn after one or two others, or a question about the first turn.

    A conversation is on one side of the split as a whole: its earlier turns are drawn until they
    are on the side of the last one.
    """
    any_topic = rng.choice((*TOPICS, sums.make_sum))
    last = rng.choice((_remembered, any_topic))(rng)
    side, asked = is_held_out(last.key), list(last.messages)
    history: list[Message] = []
    for _ in range(rng.randint(0 if len(asked) > 1 else 1, 2)):
        turn = rng.choice((*TOPICS, sums.make_sum))(rng)
        while is_held_out(turn.key) != side:
            turn = rng.choice(TOPICS)(rng)
        history += [*turn.messages, {"role": "assistant", "content": turn.answer}]
    *before, question = asked
    return Item(
        kind="chat",
        key=last.key,
        messages=_with_system(rng, (*before, *history, question)),
        reasoning=last.reasoning,
        answer=last.answer,
    )
