"""Hugging Face in a process of its own, once a module."""

import pytest

from tests.gpu.hugging_face import HuggingFace


@pytest.fixture(scope="module")
def hugging_face(tmp_path_factory):
    with HuggingFace(tmp_path_factory.mktemp("hugging-face")) as process:
        yield process
