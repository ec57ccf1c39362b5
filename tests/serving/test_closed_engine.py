"""What a closed engine leaves: nothing, without the garbage collector."""

import gc
import subprocess
import sys
import weakref

import jax
import pytest

from jaxinfer import ParamsMapping
from tests.rollouts import trainers
from tests.serving.small_llm import CONFIG, GREEDY, PROMPTS, small_llm, small_params


@pytest.fixture
def no_collections():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def _own_params():
    return jax.tree.map(lambda leaf: leaf + 1, small_params())


@pytest.mark.usefixtures("no_collections")
@pytest.mark.parametrize("way", ["given", "mapped", "slept"])
def test_closing_frees_the_params(way):
    llm = small_llm(params=_own_params())
    if way == "mapped":
        llm.update_params(trainers.tunix(small_params()), ParamsMapping.tunix_qwen3(CONFIG))
    if way == "slept":
        llm.sleep()
        llm.wake_up()
    llm.generate(PROMPTS, [GREEDY, GREEDY.clone(presence_penalty=0.5), GREEDY], use_tqdm=False)
    params = llm._loaded.replicas[0].runner.resident.params
    leaves = [weakref.ref(leaf) for leaf in jax.tree.leaves(params)]
    del params
    assert all(leaf() is not None for leaf in leaves)
    llm.close()
    assert not [leaf() for leaf in leaves if leaf() is not None]


@pytest.mark.usefixtures("no_collections")
def test_a_closed_engine_goes_with_its_last_reference():
    with small_llm() as llm:
        llm.generate(PROMPTS, GREEDY, use_tqdm=False)
        (replica,), driver = llm._loaded.replicas, llm._handle.driver
        kept = [weakref.ref(each) for each in (driver, replica.engine, replica.scheduler)]
        kept += [weakref.ref(each) for each in (replica.runner, replica.runner.launcher)]
        del replica, driver
    del llm
    assert not [each() for each in kept if each() is not None]


_USED_TO_THE_END = """
import threading
from jaxinfer.testing import tiny_llm
from tests.serving.small_llm import GREEDY

llm = tiny_llm()

def work():
    threading.main_thread().join()
    for _ in llm.stream([1, 2, 3], GREEDY):
        pass
    print("all of it", flush=True)
    next(llm.stream([1, 2, 3], GREEDY))

threading.Thread(target=work).start()
"""


@pytest.mark.slow
def test_other_threads_use_an_engine_after_the_main_thread_s_end():
    """Its programs are compiled then, too, and Python's end closes it."""
    command = [sys.executable, "-c", _USED_TO_THE_END]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    assert (result.stdout, result.stderr) == ("all of it\n", "")
