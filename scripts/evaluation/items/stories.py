"""Generates short stories from a grammar, as text that a small model can learn."""

from dataclasses import dataclass
from random import Random

from scripts.evaluation.items import lexicon
from scripts.evaluation.items.item import Item

MAX_EPISODES = 8
OPENINGS = (
    "Once upon a time, there was a {trait} {animal} named {name}.",
    "Once upon a time there lived a {trait} {animal} called {name}.",
    "Once upon a time, in a {place} far away, there lived a {trait} {animal} named {name}.",
    "Long ago, a {trait} {animal} called {name} lived near a {place}.",
    "One day, a {trait} {animal} named {name} woke up early.",
)
SETTINGS = (
    "{name} lived in the {place} with a friend called {friend}.",
    "Every morning, {name} walked through the {place} and sang a song.",
    "{name} loved the {place}, and most of all {name} loved {food}.",
    "In the {place} there was always {food} to eat and a friend to play with.",
)
EPISODES = (
    "One day, {name} found a {color} {thing} under a tree. {name} wanted to show it to {friend}. "
    '"Look what I found!" said {name}. {friend} smiled and said, "What a lovely {thing}!"',
    "One morning it was {weather}, and {name} could not find the {color} {thing}. {name} looked "
    "in the {place}, but it was not there. {friend} came to help. Together they found the {thing} "
    "behind a big stone.",
    'Then {name} met {friend}. "I am hungry," said {friend}. {name} had some {food} and gave half '
    "of it to {friend}. They sat down by the water and ate together.",
    "The next day was {weather}. {name} and {friend} went to the {place} with a {color} {thing}. "
    "They played until the sun went down, and then they walked home.",
    'After that, {friend} was sad. "I lost my {thing}," said {friend}. "Don\'t worry," said '
    '{name}. "I will help you." They looked everywhere, and at last they saw it: the {thing} was '
    "in the {place}!",
    "At night, {name} heard a sound. Was it the wind? It was {friend}, who carried a {color} "
    '{thing}. "I made this for you," said {friend}. {name} was very happy.',
    "{name} wanted to cross the river, but the bridge was broken. {friend} had an idea. They built "
    "a boat from wood and a {color} {thing}, and soon they were on the other side.",
    "A {weather} week came, and everyone in the {place} stayed at home. {name} baked {food} and "
    "brought it to every door. {friend} played the drum, and nobody was lonely any more.",
)
ENDINGS = (
    "From that day on, {name} and {friend} were the best of friends. The end.",
    "{name} learned that it is good to share. The end.",
    "And so {name} went to sleep with a smile. The end.",
    "{name} was not {trait} any more, but very happy. The end.",
    "They all lived happily ever after. The end.",
    "{name} learned that a friend is better than any {thing}. The end.",
)


@dataclass(frozen=True)
class Cast:
    """The subjects of a story, under the names that the sentences use."""

    name: str
    friend: str
    animal: str
    trait: str
    place: str

    @property
    def key(self) -> str:
        """The part of a story that must be unseen for it to be held out."""
        return f"story {self.name} {self.animal} {self.place}"


def draw_cast(rng: Random) -> Cast:
    """Draws a hero, another name for the friend, and a place."""
    name, friend = rng.sample(lexicon.NAMES, 2)
    animal, trait = rng.choice(lexicon.ANIMALS), rng.choice(lexicon.TRAITS)
    return Cast(name, friend, animal, trait, rng.choice(lexicon.PLACES))


def tell(cast: Cast, rng: Random, episodes: int) -> str:
    """The story of a cast in a number of episodes, with an opening and an ending."""
    lines = [rng.choice(OPENINGS), rng.choice(SETTINGS)]
    lines += [rng.choice(EPISODES) for _ in range(episodes)]
    lines.append(rng.choice(ENDINGS))
    return " ".join(
        line.format(
            **vars(cast),
            thing=rng.choice(lexicon.THINGS),
            color=rng.choice(lexicon.COLORS),
            food=rng.choice(lexicon.FOODS),
            weather=rng.choice(lexicon.WEATHERS),
        )
        for line in lines
    )


def make_story(rng: Random) -> Item:
    """A story as plain text with nothing before it; short ones are the most frequent."""
    cast = draw_cast(rng)
    episodes = min(rng.randint(1, MAX_EPISODES), rng.randint(1, MAX_EPISODES))
    return Item(kind="story", key=cast.key, answer=tell(cast, rng, episodes))
