"""What tunix says, in jaxinfer's words; none of it needs tunix."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh

from jaxinfer.integrations.tunix_settings import (
    choose_pad,
    drawn_seed,
    engine_mesh,
    left_padded,
    lora_rank,
    model_config,
    neighbours,
    request_params,
    sampling_params,
    sharding_rules,
)


def _qwen3(**changes):
    fields = {
        "vocab_size": 2048,
        "embed_dim": 256,
        "hidden_dim": 512,
        "num_layers": 4,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 128,
        "norm_eps": 1e-6,
        "rope_theta": 1_000_000,
        "use_tied_embedding": True,
        "num_experts": None,
    }
    return SimpleNamespace(**(fields | changes))


class _Tokenizer:
    """What the choice of a pad reads; the tokenizer's own is the last special token but one."""

    bos_token_id = None

    def __init__(self, size, special):
        self._size = size
        self.added_tokens_decoder = {i: SimpleNamespace(special=True) for i in special}
        self.pad_token_id = special[-2] if len(special) > 1 else None

    def __len__(self):
        return self._size


def test_the_shape_of_the_model_is_tunix_s():
    config = model_config(_qwen3(), 64)
    assert (config.hidden_size, config.intermediate_size) == (256, 512)
    assert config.tie_word_embeddings
    assert config.max_position_embeddings == 64


def test_a_base_of_rotations_that_tunix_ignores_is_said():
    with pytest.warns(UserWarning, match="rope_theta is 5000000"):
        config = model_config(_qwen3(rope_theta=5_000_000), 64)
    assert config.rope_theta == 5e6


def test_other_models_are_refused():
    with pytest.raises(ValueError, match="experts"):
        model_config(_qwen3(num_experts=8), 64)
    with pytest.raises(TypeError, match="qwen3 model"):
        model_config(SimpleNamespace(), 64)


def test_axes_that_a_mesh_lacks_split_nothing():
    rules = sharding_rules(("fsdp", "tp"))
    assert (rules.heads, rules.data, rules.embed) == ("tp", "fsdp", None)
    rules = sharding_rules(("tp",))
    assert (rules.vocab, rules.data) == ("tp", None)
    assert sharding_rules(("fsdp",)).heads is None


def test_the_engine_s_mesh_leaves_shardings_to_the_compiler():
    devices = np.array(jax.devices()[:1]).reshape(1, 1)
    explicit = Mesh(devices, ("fsdp", "tp"), axis_types=(AxisType.Explicit,) * 2)
    assert engine_mesh(explicit).axis_types == (AxisType.Auto,) * 2


def test_equal_neighbours_are_one_request():
    assert neighbours(["a", "a", "b", "a"]) == [("a", 2), ("b", 1), ("a", 1)]


def test_settings_of_a_rollout():
    config = SimpleNamespace(max_tokens_to_generate=7, temperature=0.9, top_p=None, top_k=None)
    params = sampling_params(config, [5], 3, 1)
    assert (params.n, params.max_tokens, params.temperature) == (3, 7, 0.9)
    assert (params.top_p, params.top_k) == (1.0, 0)
    assert list(params.stop_token_ids or ()) == [5]


def test_a_pad_is_an_id_without_a_token():
    assert choose_pad(None, {3}, 16, _Tokenizer(12, [3])) == 15


def test_a_full_vocabulary_pads_with_a_special_token_that_ends_nothing():
    assert choose_pad(None, {15}, 16, _Tokenizer(16, [12, 13, 14, 15])) == 13


def test_a_vocabulary_of_text_alone_asks_for_a_pad():
    with pytest.raises(ValueError, match="pad_token_id="):
        choose_pad(None, {3}, 16, _Tokenizer(16, [3]))
    assert choose_pad(4, {3}, 16, _Tokenizer(16, [3])) == 4


@pytest.mark.parametrize("given", [3, 16, -1])
def test_a_pad_that_may_be_sampled_is_refused(given):
    with pytest.raises(ValueError, match=f"pad_token_id {given}"):
        choose_pad(given, {3}, 16, None)


def test_prompts_are_padded_on_the_left():
    assert left_padded([[1, 2], [3]], 3, 0).tolist() == [[0, 1, 2], [0, 0, 3]]
    with pytest.raises(ValueError, match="prompt 1 has 4 tokens"):
        left_padded([[1], [1, 2, 3, 4]], 3, 0)


def _adapters(**ranks):
    """qwix's leaves of one layer's projections, of these ranks."""
    leaves = {}
    for name, rank in ranks.items():
        leaves[f"layers.0.attn.{name}.w_lora_a"] = np.zeros((2, 8, rank))  # heads, and of each
        leaves[f"layers.0.attn.{name}.w_lora_b"] = np.zeros((rank, 16))
    return leaves


def test_the_rank_of_adapters_is_that_of_all_or_an_error():
    assert lora_rank(_adapters(q_proj=4, o_proj=4)) == 4
    with pytest.raises(ValueError, match=r"q_proj.w_lora_a has rank 4, and .*o_proj.w_lora_a 2;"):
        lora_rank(_adapters(q_proj=4, o_proj=2))
    with pytest.raises(
        ValueError, match=r"embedder.input_embedding_lora_a is no matrix of LoRA.* like base_model"
    ):
        lora_rank({"embedder.input_embedding_lora_a": np.zeros((8, 4))})


def _request(**changes):
    """What tunix's `SamplingParams` are of a request of its `Sampler`."""
    fields = {
        "max_tokens": 5,
        "temperature": 0.7,
        "top_p": None,
        "top_k": None,
        "seed": None,
        "return_logits": False,
        "beam_size": None,
    }
    return SimpleNamespace(**(fields | changes))


def test_a_samplers_request_keeps_its_settings():
    params = request_params(_request(), "a", 0, with_logprobs=False)
    assert (params.max_tokens, params.temperature) == (5, 0.7)
    assert (params.top_p, params.top_k, params.seed, params.logprobs) == (1.0, 0, None, None)
    params = request_params(_request(top_p=0.5, top_k=3), "a", 0, with_logprobs=True)
    assert (params.top_p, params.top_k, params.logprobs) == (0.5, 3, 0)


def test_a_samplers_requests_of_one_seed_draw_differently():
    def seed(label, place):
        return request_params(_request(seed=1), label, place, with_logprobs=False).seed

    assert seed("a", 0) == seed("a", 0)
    assert len({seed("a", 0), seed("a", 1), seed("b", 0)}) == 3


@pytest.mark.parametrize("name", ["return_logits", "beam_size"])
def test_a_samplers_request_wants_what_the_engine_has(name):
    with pytest.raises(ValueError, match=f"JaxinferSampler has no {name}; leave it out"):
        request_params(_request(**{name: 2}), "a", 0, with_logprobs=False)


def test_seeds_are_drawn_from_numbers_and_keys():
    assert drawn_seed(None, (1,)) is None
    raw = drawn_seed(jax.random.PRNGKey(3), (1, 2))
    assert raw == drawn_seed(jax.random.key(3), (1, 2)) != drawn_seed(3, (1, 3))
