"""The kinds of item that only training draws keep to their side of the split, too."""

import pytest

from scripts.bundled_model.training_items import TRAINING_GENERATORS
from scripts.evaluation.items.mixture import GENERATORS
from tests.scripts.evaluation.items import draws

ONLY_TAUGHT = sorted(set(TRAINING_GENERATORS) - set(GENERATORS))


@pytest.mark.parametrize("name", ONLY_TAUGHT)
def test_the_same_seed_draws_the_same_items(name: str):
    draws.check_draws_depend_on_the_seed_alone(TRAINING_GENERATORS[name])


@pytest.mark.parametrize("name", ONLY_TAUGHT)
def test_training_and_held_out_items_share_no_key(name: str):
    draws.check_training_and_held_out_items_share_no_key(TRAINING_GENERATORS[name])


@pytest.mark.parametrize("name", ["plain_sum", "small_sum"])
def test_training_text_holds_no_held_out_sum_in_either_order(name: str):
    draws.check_training_text_holds_no_held_out_sum(TRAINING_GENERATORS[name])


def test_two_calls_are_offered_and_have_all_their_arguments():
    draws.check_calls_are_offered_and_have_all_their_arguments(
        TRAINING_GENERATORS["two_tool_calls"]
    )
