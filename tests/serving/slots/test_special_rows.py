"""Of many rows, the few that need more than a temperature are sampled apart."""

import pytest

from jaxinfer import SamplingParams
from jaxinfer.serving.runner.batch_builder import BatchBuilder
from tests.serving.small_llm import GREEDY, PROMPTS, small_llm

EXHAUSTIVE = pytest.mark.exhaustive
COUNT, ROWS = 9, 40
SPECIAL = [
    GREEDY.clone(max_tokens=COUNT, repetition_penalty=1.4, frequency_penalty=0.8, logprobs=2),
    SamplingParams(
        temperature=1.2, min_p=0.1, max_tokens=COUNT, ignore_eos=True, seed=9, logprobs=1
    ),
    GREEDY.clone(max_tokens=COUNT, logit_bias={3: 4.0}, allowed_token_ids=[3, 4, 5, 90, 91]),
    SamplingParams(temperature=0.9, max_tokens=COUNT, ignore_eos=True, seed=4, logprobs=3),
]


def _plain(seed):
    return SamplingParams(temperature=1.0, max_tokens=COUNT, ignore_eos=True, seed=seed, logprobs=0)


TRUNCATED = SamplingParams(temperature=1.2, top_k=5, top_p=0.8, max_tokens=COUNT, ignore_eos=True)
KINDS = [_plain(1), TRUNCATED.clone(seed=2), *SPECIAL]


def _written(output):
    completion = output.outputs[0]
    return completion.token_ids, completion.logprobs


@pytest.fixture(scope="module")
def alone():
    """What each request gets in an engine of few rows, which samples all of them in full."""
    with small_llm() as llm:
        return {
            (i, j): _written(llm.generate([prompt], params, use_tqdm=False)[0])
            for i, prompt in enumerate(PROMPTS)
            for j, params in enumerate(KINDS)
        }


ON_ONE, ON_TWO = {}, {"tensor_parallel_size": 2}
MIXED, MANY, TRUNCATING = (8, False, "mixed"), (9, False, "full"), (8, True, "full")
# Room for all prompts in one step.
WIDE = {
    "max_num_seqs": ROWS,
    "max_num_batched_tokens": 256,
    "num_kv_blocks": 200,
    "max_model_len": 57,
}
# Where rows are sampled apart, on a mesh, too; where they are not, on one device.
COVERING = [(MIXED, ON_ONE), (MIXED, ON_TWO), (MANY, ON_ONE), (TRUNCATING, ON_ONE)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("num_special", "truncating", "mode", "options"),
    [
        pytest.param(*case, options, marks=[] if (case, options) in COVERING else EXHAUSTIVE)
        for case in (MIXED, MANY, TRUNCATING)
        for options in (ON_ONE, ON_TWO)
    ],
)
def test_all_rows_get_what_they_get_alone(
    monkeypatch, alone, num_special, truncating, mode, options
):
    modes = []
    build = BatchBuilder.build

    def recorded(self, schedule):
        batch = build(self, schedule)
        modes.append(batch.mode)
        return batch

    monkeypatch.setattr(BatchBuilder, "build", recorded)
    kinds = [2 + i % len(SPECIAL) if i < num_special else 0 for i in range(ROWS)]
    kinds[-1] = int(truncating)
    kinds = kinds[5:] + kinds[:5]  # special rows at both ends
    params = [KINDS[kind] for kind in kinds]
    prompts = [PROMPTS[i % len(PROMPTS)] for i in range(ROWS)]
    with small_llm(**WIDE, **options) as llm:
        outputs = llm.generate(prompts, params, use_tqdm=False)
    assert mode in modes
    for i, (output, kind) in enumerate(zip(outputs, kinds, strict=True)):
        token_ids, logprobs = alone[i % len(PROMPTS), kind]
        assert output.outputs[0].token_ids == token_ids
        for got, expected in zip(output.outputs[0].logprobs or [], logprobs or [], strict=True):
            assert got.keys() == expected.keys()
            for token, entry in expected.items():
                assert entry.rank in (got[token].rank, None)
                assert got[token].rank != 0
                assert got[token].logprob == pytest.approx(entry.logprob, abs=1e-5)
