"""Processes that are forked or spawned beside a chat template's own each have one of their own."""

import copy
import multiprocessing
import os
import pickle
import signal
import threading
import warnings

import pytest

from jaxinfer.model.text.chat_template import ChatTemplate
from jaxinfer.model.text.tokenizer import Tokenizer
from tests.lazy import torch
from tests.model.text.small_tokenizer import write_tokenizer

NUM_TEXTS = 64
# Long enough that an answer takes several reads of a pipe.
SOURCE = "{% for i in range(3000) %}{{ messages[0].content }} of many words {% endfor %}"

# JAX's threads, and this test's own, are why Python and JAX warn of a fork.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*fork:RuntimeWarning"),
]


def conversation(i):
    return [{"role": "user", "content": f"number {i}"}]


def expected(i):
    return f"number {i} of many words " * 3000


@pytest.fixture
def template():
    template = ChatTemplate(SOURCE, {}, "x")
    yield template
    template.close()


def _in_fork(work):
    """Run a function in a forked process; its return value as text. Fails after 30 s."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        child = os.fork()
    if not child:
        try:
            os.write(writer, str(work()).encode())
        finally:
            os._exit(0)
    os.close(writer)
    alarm = threading.Timer(30, os.kill, (child, signal.SIGKILL))
    alarm.start()
    try:
        with os.fdopen(reader) as stream:
            return stream.read()
    finally:
        alarm.cancel()
        os.waitpid(child, 0)


class Texts:
    """A data set as `torch.utils.data.DataLoader` takes them."""

    def __init__(self, template):
        self.template = template

    def __len__(self):
        return NUM_TEXTS

    def __getitem__(self, i):
        return i, self.template.render(conversation(i))


def test_workers_of_a_data_loader_get_their_own_conversations(template):
    template.render(conversation(0))
    loader = torch.utils.data.DataLoader(
        Texts(template), batch_size=None, num_workers=2, multiprocessing_context="fork"
    )
    assert [(i, text == expected(i)) for i, text in loader] == [(i, True) for i in range(NUM_TEXTS)]
    assert template.render(conversation(-1)) == expected(-1)


def test_a_forked_pool_gets_its_own_conversations(template):
    texts = Texts(template)
    template.render(conversation(0))
    with multiprocessing.get_context("fork").Pool(4) as pool:
        found = pool.map(texts.__getitem__, range(NUM_TEXTS), chunksize=1)
    assert found == [(i, expected(i)) for i in range(NUM_TEXTS)]


def test_a_fork_while_another_thread_renders_hangs_neither(template):
    ended, texts = threading.Event(), []

    def render():
        while not ended.is_set():
            texts.append(template.render(conversation(7)))

    thread = threading.Thread(target=render)
    thread.start()
    try:
        for i in range(5):
            assert _in_fork(lambda i=i: template.render(conversation(i)) == expected(i)) == "True"
    finally:
        ended.set()
        thread.join()
    assert texts
    assert set(texts) == {expected(7)}


def test_a_fork_leaves_the_parents_process_alone_and_holds_none_of_its_pipes(template):
    template.render(conversation(0))
    process = template._worker._process
    assert process is not None
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        child = os.fork()
    if not child:
        os.close(writer)
        template.close()
        os.read(reader, 1)  # until the parent has closed its end
        os._exit(0)
    assert template.render(conversation(1)) == expected(1)
    assert template._worker._process is process
    template.close()
    assert process.returncode == 0  # ended by itself, as its input ended; not killed
    os.close(writer)
    os.waitpid(child, 0)
    os.close(reader)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_a_copy_of_a_tokenizer_has_a_process_of_its_own(tmp_path, copied):
    tokenizer = Tokenizer.from_directory(write_tokenizer(tmp_path))
    text = tokenizer.apply_chat_template(conversation(0))
    another = copied(tokenizer)
    tokenizer.close()
    assert another.apply_chat_template(conversation(0)) == text
    assert another.encode(text) == tokenizer.encode(text)
    another.close()
