"""A tiny real engine for the tests of the offline API, which must not lose a block."""

import pytest

from jaxinfer.model.text.tokenizer import Tokenizer
from tests.model.text.small_tokenizer import write_tokenizer
from tests.serving.small_llm import small_llm


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    tokenizer = Tokenizer.from_directory(write_tokenizer(tmp_path_factory.mktemp("llm")))
    yield tokenizer
    tokenizer.close()


@pytest.fixture(scope="module")
def llm(tokenizer):
    with small_llm(tokenizer=tokenizer) as llm:
        yield llm


@pytest.fixture(autouse=True)
def no_blocks_are_lost(request):
    yield
    if "llm" in request.fixturenames:
        llm = request.getfixturevalue("llm")
        assert not llm.has_unfinished_requests()
        scheduler = llm._loaded.replicas[0].scheduler
        scheduler.check_invariants()
        assert scheduler.pool.num_free_blocks == scheduler.pool.num_usable_blocks
