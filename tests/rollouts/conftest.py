"""A tokenizer for the room's tests."""

from pathlib import Path

import pytest

import jaxinfer
from jaxinfer import Tokenizer


@pytest.fixture(scope="module")
def tokenizer():
    tokenizer = Tokenizer.from_directory(Path(jaxinfer.__file__).parent / "assets" / "model")
    yield tokenizer
    tokenizer.close()
