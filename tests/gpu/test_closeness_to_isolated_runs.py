"""What runs together answers as each request by itself, and as Hugging Face: requests that are
preempted, that begin alike, and whose lengths lie at the borders of blocks, tiles and the model.

With `-m exhaustive` the same body runs on a CPU, in float32.
"""

import numpy as np
import pytest
from scipy.special import log_softmax

from jaxinfer import LLM, SamplingParams
from jaxinfer.model.checkpoint.hub import BUNDLED_MODEL
from jaxinfer.serving.runner import batch_builder
from scripts.gpu_gate.agreement import check_greedy, check_sampled
from tests.gpu.bundled import ragged_prompts
from tests.gpu.hugging_face import EXACT
from tests.gpu.internals import num_preemptions

MAX_MODEL_LEN = 512
# Room for two full-length requests: a crowd is preempted, and all cases run the same programs.
NUM_BLOCKS = 1 + 2 * MAX_MODEL_LEN // 16
GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True, logprobs=5)
# Answers that end at borders of blocks (16) and tiles (64 and 128 keys), and one token beside.
LENGTHS = (15, 16, 17, 63, 64, 65, 127, 128, 129)
SHARED = 4 * 64


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("auto", marks=pytest.mark.gpu, id="gpu"),
        pytest.param("xla", marks=[pytest.mark.slow, pytest.mark.exhaustive], id="cpu"),
    ],
)
def backend(request):
    return request.param


@pytest.fixture(scope="module")
def start(backend, tmp_path_factory):
    """Makes an engine; all of them share what they compile."""
    cache = str(tmp_path_factory.mktemp("cache"))

    def start(**options):
        defaults = {
            "dtype": "bfloat16" if backend == "auto" else "float32",
            "attention_backend": backend,
            "compilation_cache_dir": cache,
            "max_model_len": MAX_MODEL_LEN,
            "max_num_seqs": 8,
            "num_kv_blocks": NUM_BLOCKS,
            "compile_ahead": False,
            "show_progress": False,
        }
        return LLM(**(defaults | options))

    return start


@pytest.fixture(scope="module")
def llm(start):
    with start() as llm:
        yield llm


@pytest.fixture(scope="module")
def text():
    """As many tokens of stories as the model takes at once."""
    ids = [token for prompt in ragged_prompts() for token in prompt]
    assert len(ids) >= MAX_MODEL_LEN
    return ids[:MAX_MODEL_LEN]


def answers(llm, prompts, params=GREEDY):
    """Completions from an empty prefix cache; afterwards every block is free."""
    llm.reset_prefix_cache()
    outputs = llm.generate(prompts, params, use_tqdm=False)
    assert [output.error for output in outputs] == [None] * len(outputs)
    scheduler = llm._loaded.replicas[0].scheduler
    scheduler.check_invariants()
    assert scheduler.pool.num_free_blocks == scheduler.pool.num_usable_blocks
    return [output.outputs[0] for output in outputs]


def check_isolated(llm, prompts, together, params=GREEDY):
    """Compare answers with each prompt's answer in an isolated run."""
    params = [params] * len(prompts) if isinstance(params, SamplingParams) else params
    for prompt, own, answer in zip(prompts, params, together, strict=True):
        (alone,) = answers(llm, [prompt], own)
        check_greedy(alone, answer)
        check_sampled(alone, answer)


@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_requests_that_are_preempted_answer_as_by_themselves(start, mode, hugging_face):
    prompts = [ids for ids in ragged_prompts() if len(ids) > 60] * 2
    options = {"preemption_mode": "swap", "swap_space": 0.1} if mode == "swap" else {}
    params = GREEDY.clone(max_tokens=100)
    with start(**options) as llm:
        together = answers(llm, prompts, params)
        assert num_preemptions(llm)
        check_isolated(llm, prompts, together, params)
    check_near_hugging_face(hugging_face, prompts, together)


def test_requests_that_begin_alike_answer_as_by_themselves(start, text, monkeypatch):
    keys_read_once, write = [0], batch_builder.write_items

    def recorded(into, groups):
        keys_read_once.extend(group.keys for group in groups)
        write(into, groups)

    monkeypatch.setattr(batch_builder, "write_items", recorded)
    # So many rows that reading what they share once is worth it.
    prompts = [text[: SHARED + 5] + text[300 + i : 305 + 2 * i] for i in range(48)]
    with start(max_num_seqs=64, num_kv_blocks=1 + 64 * MAX_MODEL_LEN // 16) as llm:
        together = answers(llm, prompts)
        if llm.report.attention_backend == "mosaic":
            assert max(keys_read_once) == SHARED
        check_isolated(llm, prompts[::6], together[::6])


def test_answers_end_anywhere_in_a_block_or_a_tile(llm, text, hugging_face):
    prompts = [text[i : i + 9] for i in range(len(LENGTHS))]
    params = [GREEDY.clone(max_tokens=length - 9) for length in LENGTHS]
    together = answers(llm, prompts, params)
    check_isolated(llm, prompts, together, params)
    check_near_hugging_face(hugging_face, prompts, together)


def test_prompts_end_anywhere_in_a_block_or_a_tile(llm, text, hugging_face):
    prompts = [text[i : i + length] for i, length in enumerate(LENGTHS)]
    together = answers(llm, prompts)
    check_isolated(llm, prompts, together)
    check_near_hugging_face(hugging_face, prompts, together)


def test_answers_fill_the_model_to_its_last_token(llm, text, hugging_face):
    lengths = [MAX_MODEL_LEN - left for left in (1, 2, 15, 16, 17, 40)]
    prompts = [text[:length] for length in lengths]
    params = GREEDY.clone(max_tokens=None)
    together = answers(llm, prompts, params)
    counts = [len(answer.token_ids) for answer in together]
    assert counts == [MAX_MODEL_LEN - length for length in lengths]
    check_isolated(llm, prompts, together, params)
    check_near_hugging_face(hugging_face, prompts, together)


def check_near_hugging_face(hugging_face, prompts, together):
    """Compare the chosen tokens' log-probabilities with Hugging Face's in float32."""
    differences = []
    for prompt, answer in zip(prompts, together, strict=True):
        tokens = list(answer.token_ids)
        exact = hugging_face.logits(BUNDLED_MODEL, [prompt + tokens], len(tokens))[EXACT][0]
        theirs = log_softmax(exact.astype(np.float64), axis=-1)[range(len(tokens)), tokens]
        ours = [entry[token].logprob for token, entry in zip(tokens, answer.logprobs, strict=True)]
        differences += list(np.abs(np.array(ours) - theirs))
    # NaN fails both. Hugging Face's own bfloat16 differs by a few thousandths.
    assert np.mean(differences) <= 0.01
    assert np.max(differences) <= 0.2
