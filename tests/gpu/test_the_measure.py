"""The measure of closeness itself, on a CPU: it accepts a sound engine and sees a small fault."""

import numpy as np
import pytest

from tests.gpu.closeness import mean_kl, measure
from tests.gpu.random_models import random_model, random_prompts


def test_kl_divergence_of_known_distributions():
    p, q = np.array([0.5, 0.5]), np.array([0.25, 0.75])
    expected = 0.5 * np.log(0.5 / 0.25) + 0.5 * np.log(0.5 / 0.75)
    # Logits are log-probabilities up to a constant of each row.
    assert mean_kl([np.log([p, p])], [np.log([q, p]) + 3]) == pytest.approx(expected / 2)


@pytest.mark.slow
def test_a_sound_engine_is_near_and_a_faulty_one_is_not(hugging_face, tmp_path):
    config, params = random_model(tmp_path, heads=4, kv_heads=2, head_dim=64)

    def closeness(params):
        return measure(
            hugging_face,
            tmp_path,
            random_prompts()[:5],
            num_outputs=8,
            params=params,
            config=config,
            num_kv_blocks=65,
            max_model_len=128,
            max_num_seqs=4,
            max_num_batched_tokens=64,
            num_decode_steps=1,  # a program less to compile for each engine
        )

    closeness(params).check()
    attention = params["model"]["layers"]["1"]["self_attn"]
    attention["q_norm"] = attention["q_norm"] * 1.1  # as a wrong scale of the scores would do
    with pytest.raises(AssertionError, match="KL of the engine"):
        closeness(params).check()
