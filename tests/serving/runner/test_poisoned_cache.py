"""Keys and values that became NaN fail the request that meets them, and none after it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.errors import StepError
from tests.serving.small_llm import GREEDY, greedy_reference, ids, small_params

PROMPT = [*range(30, 70)]
OTHER = [*range(90, 130)]


def _poison_pages(llm, prompt):
    """Make what the cache holds of a prompt's first block NaN."""
    (replica,) = llm._loaded.replicas
    pool, runner = replica.scheduler.pool, replica.runner
    first = np.array(prompt[: pool.block_size], np.int32).tobytes()
    blocks = [b for b, content in pool.index.content_of_block.items() if content.endswith(first)]
    (block,) = blocks
    runner.launcher.resident = runner.resident._replace(
        kv=jax.tree.map(lambda pages: pages.at[block].set(jnp.nan), runner.resident.kv)
    )


def _check_that_it_is_computed_anew(llm):
    good, other = llm.generate([PROMPT, OTHER], GREEDY, use_tqdm=False)
    assert ids([good]) == [greedy_reference(PROMPT, 6)]
    assert good.num_cached_tokens == 0
    assert other.num_cached_tokens == 32


def test_a_request_that_found_nan_in_the_cache_is_the_last_to_find_it(llm):
    llm.generate([PROMPT, OTHER], GREEDY, use_tqdm=False)
    _poison_pages(llm, PROMPT)
    (bad,) = llm.generate([PROMPT], GREEDY, use_tqdm=False)
    assert bad.outputs[0].finish_reason == "error"
    _check_that_it_is_computed_anew(llm)


@pytest.mark.parametrize("scores", [False, True], ids=["generate", "score"])
def test_nan_that_a_request_wrote_is_found_by_nobody(llm, scores):
    llm.update_params(small_params())  # nothing is cached from here on
    llm.generate([OTHER], GREEDY, use_tqdm=False)
    runner = llm._loaded.replicas[0].runner
    good = runner.resident.params
    runner.launcher.resident = runner.resident._replace(
        params=jax.tree.map(lambda leaf: leaf * jnp.nan, good)
    )
    try:
        if scores:
            with pytest.raises(StepError, match="not finite"):
                llm.score([PROMPT])
        else:
            (bad,) = llm.generate([PROMPT], GREEDY, use_tqdm=False)
            assert bad.outputs[0].finish_reason == "error"
    finally:
        # A step that was launched ahead puts the parameters that it was given back.
        llm._handle.driver.call(runner.launches.wait)
        runner.launcher.resident = runner.resident._replace(params=good)
    _check_that_it_is_computed_anew(llm)
