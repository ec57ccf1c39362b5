"""The generators: what they draw depends on the seed alone, and the two sides never meet."""

import json
import re
from random import Random
from typing import cast

import pytest

from scripts.evaluation.items import lexicon
from scripts.evaluation.items.item import Item, draw_from_split
from scripts.evaluation.items.mixture import GENERATORS, held_out_items
from scripts.evaluation.items.split import is_held_out
from tests.scripts.evaluation.items import draws
from tests.scripts.evaluation.items.draws import conversation, draw


@pytest.mark.parametrize("name", GENERATORS)
def test_the_same_seed_draws_the_same_items(name: str):
    draws.check_draws_depend_on_the_seed_alone(GENERATORS[name])


@pytest.mark.parametrize("name", GENERATORS)
def test_training_and_held_out_items_share_no_key(name: str):
    draws.check_training_and_held_out_items_share_no_key(GENERATORS[name])


@pytest.mark.parametrize("name", ["sum", "chat", "conversation", "json", "tool_call"])
def test_no_held_out_question_was_ever_a_training_question(name: str):
    training = {conversation(item) for item in draw(GENERATORS[name], 300)}
    asked = {conversation(item) for item in held_out_items(name, 20)}
    assert not training & asked


@pytest.mark.parametrize("name", ["sum", "conversation"])
def test_training_text_holds_no_held_out_sum_in_either_order(name: str):
    draws.check_training_text_holds_no_held_out_sum(GENERATORS[name])


def test_about_one_key_in_ten_is_held_out():
    share = sum(is_held_out(f"key {i}") for i in range(10_000)) / 10_000
    assert 0.08 < share < 0.12


def test_more_held_out_items_only_append():
    assert held_out_items("chat", 30)[:10] == held_out_items("chat", 10)
    assert held_out_items("chat", 10, seed=1) != held_out_items("chat", 10)


def test_held_out_items_are_all_different():
    keys = [item.key for item in held_out_items("sum", 60)]
    assert len(set(keys)) == len(keys)


def test_asking_for_too_many_or_unknown_items_is_an_error(monkeypatch: pytest.MonkeyPatch):
    def make_few(rng: Random) -> Item:
        return Item(kind="few", key=f"few {rng.randint(0, 60)}", answer="")

    monkeypatch.setitem(cast(dict, GENERATORS), "few", make_few)
    count = sum(is_held_out(f"few {i}") for i in range(61))
    assert len(held_out_items("few", count)) == count
    with pytest.raises(ValueError, match=f"few has about {count} held-out items, 999 were asked"):
        held_out_items("few", 999)
    with pytest.raises(ValueError, match="unknown kind of item 'sums'; known: sum"):
        held_out_items("sums", 1)


def test_a_generator_with_no_held_out_item_is_an_error():
    def make_one(rng: Random) -> Item:
        return Item(kind="one", key="key 1", answer="")

    with pytest.raises(ValueError, match="make_one made no held-out item"):
        draw_from_split(make_one, Random(0), held_out=True)


def test_sums_are_right_and_so_is_the_written_carry():
    for item in draw(GENERATORS["sum"], 300):
        a, b, total = map(int, re.findall(r"\d+", item.answer))
        assert a + b == total
        tens = re.findall(r"= (\d+)\.$", item.reasoning)[0]
        last = re.findall(r"last digit is (\d)", item.reasoning)[0]
        assert tens + last == str(total)


def test_the_calls_wanted_are_offered_and_have_all_their_arguments():
    draws.check_calls_are_offered_and_have_all_their_arguments(GENERATORS["tool_call"])


def test_json_answers_parse_and_hold_the_fields_asked_for():
    for item in draw(GENERATORS["json"], 200):
        question = item.messages[-1]["content"]
        assert all(field in question for field in json.loads(item.answer))


def test_texts_exercise_letters_of_several_bytes():
    texts = " ".join(item.answer for item in draw(GENERATORS["chat"], 200))
    longest = max(len(letter.encode()) for letter in texts)
    assert longest == 4
    assert any(name in texts for name in lexicon.NAMES if not name.isascii())
