"""Generates requests for one JSON object of named fields, which a parser can judge."""

import json
from random import Random

from scripts.evaluation.items import lexicon
from scripts.evaluation.items.item import Item

REQUESTS = (
    "Return a JSON object with {fields}. {facts}",
    "{facts} Write this as JSON with {fields}.",
    "Give me only JSON with the fields {fields}. {facts}",
)


def _person(rng: Random) -> tuple[dict[str, object], str]:
    name, city = rng.choice(lexicon.NAMES), rng.choice(lexicon.CITIES)
    age = rng.randint(5, 95)
    return {"name": name, "age": age, "city": city}, f"{name} is {age} and lives in {city}."


def _pet(rng: Random) -> tuple[dict[str, object], str]:
    name, animal = rng.choice(lexicon.NAMES), rng.choice(lexicon.ANIMALS)
    color, tame = rng.choice(lexicon.COLORS), rng.random() < 0.5
    fact = f"{name} is a {color} {animal}, and it is {'tame' if tame else 'not tame'}."
    return {"name": name, "animal": animal, "color": color, "tame": tame}, fact


def _basket(rng: Random) -> tuple[dict[str, object], str]:
    owner, items = rng.choice(lexicon.NAMES), rng.sample(lexicon.FOODS, 2)
    fact = f"{owner} has {items[0]} and {items[1]}."
    return {"owner": owner, "items": items}, fact


def _trip(rng: Random) -> tuple[dict[str, object], str]:
    name, (start, goal) = rng.choice(lexicon.NAMES), rng.sample(lexicon.CITIES, 2)
    day = rng.choice(lexicon.DAYS)
    fact = f"{name} goes from {start} to {goal} on {day}."
    return {"name": name, "from": start, "to": goal, "day": day}, fact


def make_json(rng: Random) -> Item:
    """A few facts and the fields wanted; the answer is exactly that object.

    The key is the object without its numbers, so a held-out item joins values never seen together.
    """
    record, facts = rng.choice((_person, _pet, _basket, _trip))(rng)
    names = list(record)
    fields = ", ".join(names[:-1]) + f" and {names[-1]}"
    question = rng.choice(REQUESTS).format(fields=fields, facts=facts)
    words = {name: value for name, value in record.items() if not isinstance(value, int)}
    return Item(
        kind="json",
        key=f"json {json.dumps(words, ensure_ascii=False)}",
        messages=({"role": "user", "content": question},),
        reasoning=f"The user wants JSON with {len(names)} fields: {fields}.",
        answer=json.dumps(record, ensure_ascii=False),
    )
