"""An engine whose decode steps look for shared keys gives the tokens of one that does not."""

import numpy as np
import pytest

from jaxinfer import LLM, SamplingParams
from jaxinfer.serving.runner import batch_builder
from jaxinfer.serving.startup import plan

_ROWS = 40


def _tokens(temperature):
    draw = np.random.default_rng(0)
    common = draw.integers(3, 2000, 470).tolist()
    prompts = [[*common, *draw.integers(3, 2000, 1 + i % 5).tolist()] for i in range(_ROWS)]
    params = [
        SamplingParams(temperature=temperature, max_tokens=4 + i % 9, ignore_eos=True, seed=i)
        for i in range(_ROWS)
    ]
    options = {"max_num_seqs": 64, "max_model_len": 512, "num_decode_steps": 1}
    with LLM(**options, show_progress=False) as llm:
        outputs = llm.generate(prompts, params, use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_tokens_are_those_of_an_engine_that_does_not_look(temperature, monkeypatch):
    expected = _tokens(temperature)
    groups_written, write = [], batch_builder.write_items
    monkeypatch.setattr(plan, "_rows_in_item", lambda *_: 32)
    monkeypatch.setattr(
        batch_builder,
        "write_items",
        lambda into, groups: (groups_written.extend(groups), write(into, groups)),
    )
    assert _tokens(temperature) == expected
    assert {group.keys for group in groups_written} == {448}
    # The second window of 32 rows holds the rest.
    assert {group.rows for group in groups_written} >= {32}
