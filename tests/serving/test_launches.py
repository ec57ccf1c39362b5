"""However many steps a launch has, and whether it samples, answers are the same."""

import pytest

from jaxinfer.sampling_params import SamplingParams
from jaxinfer.serving.programs.buckets import Buckets
from jaxinfer.serving.programs.kinds.sampled_decode import SampledDecodeKind
from tests.serving.small_llm import small_llm

PROMPTS = [[5, 6, 7], [9, 10], [*range(11, 40)], [20], [3, 1, 4], [1, 5, 9]]
PARAMS = [
    SamplingParams(max_tokens=40, temperature=0.0, ignore_eos=True),
    SamplingParams(max_tokens=33, seed=5),
    SamplingParams(max_tokens=7, temperature=0.8, seed=6, min_p=0.1),
    SamplingParams(max_tokens=50, top_k=9, top_p=0.8, seed=7, ignore_eos=True),
    SamplingParams(max_tokens=21, seed=8, logprobs=0, ignore_eos=True),
    SamplingParams(max_tokens=30, temperature=0.0, logprobs=0, ignore_eos=True),
]


def answers(num_requests=5, **options):
    """Tokens and log-probabilities of some requests, and the steps of each launch."""
    with small_llm(max_num_seqs=8, **options) as llm:
        launches = []
        runner = llm._loaded.replicas[0].runner
        launch = runner.launch
        runner.launch = lambda schedule: (launches.append(schedule.num_steps), launch(schedule))[1]
        outputs = llm.generate(PROMPTS[:num_requests], PARAMS[:num_requests], use_tqdm=False)
    return [(out.outputs[0].token_ids, out.outputs[0].logprobs) for out in outputs], launches


@pytest.fixture(scope="module")
def alone():
    return answers(num_decode_steps=1)


@pytest.mark.parametrize("num_steps", [2, 8])
def test_the_number_of_steps_changes_no_answer(alone, num_steps):
    got, launches = answers(num_decode_steps=num_steps)
    assert num_steps in launches
    assert got == alone[0]
    assert set(alone[1]) == {1}
    assert len(launches) < len(alone[1])


def test_samplers_of_their_own_choose_the_same_tokens(alone, monkeypatch):
    monkeypatch.setattr(Buckets, "samples_at_once", lambda self, rows, mode: False)
    monkeypatch.delattr(SampledDecodeKind, "run")  # which none needs
    got, _ = answers(num_decode_steps=1)
    assert got == alone[0]


def test_by_default_few_rows_of_a_small_model_share_launches():
    assert 8 in answers(num_requests=2)[1]
    assert 4 in answers(num_requests=2, online=True)[1]
