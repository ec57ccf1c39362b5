import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.kernels.attention.pages import Pages
from jaxinfer.kernels.policy import Kernels
from jaxinfer.model.architecture import architecture_of
from jaxinfer.model.modules import abstract_params
from jaxinfer.model.sharding import ShardingRules, make_mesh, num_page_heads
from jaxinfer.serving.programs.kinds.sampled_decode import SampledDecodeKey
from jaxinfer.serving.programs.kinds.sampler import SamplerKey
from jaxinfer.serving.programs.layout import DecodeShape, PrefillShape
from jaxinfer.serving.programs.program_set import program_of
from jaxinfer.serving.programs.programs import Programs
from jaxinfer.serving.programs.steps import StepContext
from jaxinfer.serving.requests.result import unpack_scores
from jaxinfer.serving.sampling.layout import Column, Need
from tests.serving.runner.tiny_runner import CONFIG, tiny_params

pytestmark = pytest.mark.usefixtures("programs_on_disk")

_BLOCKS, _BLOCK_SIZE = 64, 8
_FORWARDS = [DecodeShape(4, 8), PrefillShape(16, 4, 8)]


@functools.cache
def _compile(devices, key):
    mesh, rules = make_mesh(devices), ShardingRules()
    context = StepContext(CONFIG, mesh, rules, Kernels("xla"), _BLOCK_SIZE, "float32")
    params = abstract_params(CONFIG, jnp.float32, mesh, rules)
    return program_of(Programs(context, params, _BLOCKS, 5), key).lower().compile()


def _local_kv_bytes(devices):
    heads = num_page_heads(CONFIG, devices) // devices
    page = _BLOCK_SIZE * heads * CONFIG.head_dim * 4
    return 2 * CONFIG.num_hidden_layers * _BLOCKS * page


def _pool_copies(text, devices):
    page = (_BLOCK_SIZE, num_page_heads(CONFIG, devices) // devices, CONFIG.head_dim)
    pool = "f32[" + ",".join(map(str, (_BLOCKS, *page))) + "]"
    return [
        line for line in text.splitlines() if re.search(rf"= {re.escape(pool)}\S* copy\(", line)
    ]


@pytest.mark.parametrize("devices", [1, 2, pytest.param(8, marks=pytest.mark.slow("alone"))])
@pytest.mark.parametrize("key", _FORWARDS, ids=lambda key: type(key).__name__)
def test_pages_are_updated_in_place_on_every_device(devices, key):
    compiled = _compile(devices, key)
    memory = compiled.memory_analysis()
    assert memory.alias_size_in_bytes == _local_kv_bytes(devices)
    # A copy of one layer's pages would show among the temporaries or as an instruction.
    assert not _pool_copies(compiled.as_text(), devices)


def test_the_last_layer_of_a_prefill_goes_on_with_each_rows_last_token_only():
    every, last = PrefillShape(16, 4, 8, all_tokens=True), PrefillShape(16, 4, 8)
    packed = np.zeros(last.size, np.int32)
    batch = last.split(packed)
    batch.token_ids[:9] = np.arange(9)
    batch.positions[:9] = [0, 1, 2, 3, 4, 0, 0, 1, 2]
    batch.slot_mapping[:9] = [8, 9, 10, 11, 12, 16, 24, 25, 26]
    batch.cu_seqlens[:] = [0, 5, 6, 9, 9]
    batch.context_lens[:] = [5, 1, 3, 0]
    batch.block_tables[:3, 0] = [1, 2, 3]
    compiled = [_compile(1, key) for key in (every, last)]
    params = tiny_params()
    page = jnp.zeros((_BLOCKS, _BLOCK_SIZE, CONFIG.num_key_value_heads, CONFIG.head_dim))
    results = []
    for program in compiled:
        kv = tuple(Pages(page + 0, page + 0) for _ in range(CONFIG.num_hidden_layers))
        results.append(program(params, kv, packed, np.zeros(5, np.int32)))
    (_, expected, _, stream), (_, hidden, _, nothing) = results
    np.testing.assert_allclose(hidden[:3], expected[:3], rtol=1e-5, atol=1e-6)
    assert (stream.shape, nothing) == ((16, CONFIG.hidden_size), None)
    for before, after in zip(*(jax.tree.leaves(kv) for kv, *_ in results), strict=True):
        np.testing.assert_allclose(after[1:4], before[1:4], rtol=1e-5, atol=1e-6)
    flops = [program.cost_analysis()["flops"] for program in compiled]
    assert flops[1] < flops[0]


@pytest.mark.parametrize("num_steps", [1, 3])
def test_a_step_that_samples_updates_pages_and_tokens_in_place(num_steps):
    compiled = _compile(1, SampledDecodeKey(DecodeShape(4, 8), "temperature", num_steps))
    slots = 5 * 4
    assert compiled.memory_analysis().alias_size_in_bytes == _local_kv_bytes(1) + slots
    assert compiled.memory_analysis().temp_size_in_bytes < _local_kv_bytes(1)
    assert not _pool_copies(compiled.as_text(), 1)


def _filled_pages(seed):
    """Keys and values of each layer, as if all had been written."""
    rng = np.random.default_rng(seed)
    shape = (_BLOCKS, _BLOCK_SIZE, CONFIG.num_key_value_heads, CONFIG.head_dim)
    each = [jnp.asarray(rng.normal(size=shape), jnp.float32) for _ in range(2)]
    return tuple(
        Pages(each[0] + layer, each[1] - layer) for layer in range(CONFIG.num_hidden_layers)
    )


def _decoding_batch(shape):
    """A packed step of three rows and one of padding: greedy and masked, drawn, truncated."""
    packed = shape.blank()
    batch = shape.split(packed)
    batch.context_lens[:] = [9, 2, 17, 0]
    batch.num_tokens[:] = [1, 1, 1, 0]
    batch.slots[:] = [2, 0, 3, 4]
    batch.block_tables[:3, :3] = [[1, 2, 0], [3, 0, 0], [4, 5, 6]]
    scalars = batch.sampling.scalars
    scalars[:, Column.TOP_P] = scalars[:, Column.REPETITION_PENALTY] = np.float32(1).view(np.int32)
    scalars[1:3, Column.TEMPERATURE] = np.float32(1.5).view(np.int32)
    scalars[2, Column.TOP_P] = np.float32(0.9).view(np.int32)
    scalars[:, Column.SEED_LOW] = [1, 2, 3, 0]
    scalars[:, Column.POSITION] = batch.context_lens
    scalars[0, Column.NEEDS] = Need.EDITS
    return packed


@pytest.mark.parametrize("mode", ["temperature", "truncate"])
def test_a_step_that_samples_is_a_step_and_its_sampler_bit_for_bit(mode):
    shape, params = DecodeShape(4, 8), tiny_params()
    packed, fed = _decoding_batch(shape), np.array([7, 8, 9, 10, 0], np.int32)
    allowed = np.full((5, -(-CONFIG.vocab_size // 32)), -1, np.int32)
    allowed[2] = 0x0F0F0F0F  # of the slot of the masked row
    forward, sampler, at_once = (
        _compile(1, key) for key in (shape, SamplerKey(4, mode), SampledDecodeKey(shape, mode))
    )
    kv, hidden, rows = forward(params, _filled_pages(0), packed, fed)
    head = architecture_of(CONFIG).head_params(params)
    apart = (kv, *sampler(head, hidden, rows, fed.copy(), allowed))
    together = at_once(params, _filled_pages(0), packed, fed.copy(), allowed)
    for one, other in zip(jax.tree.leaves(apart), jax.tree.leaves(together), strict=True):
        np.testing.assert_array_equal(one, other)
    _, last_tokens, sampled = together
    tokens = unpack_scores(np.asarray(sampled)[:, None]).tokens[:, 0]
    assert last_tokens[np.array([2, 0, 3])].tolist() == tokens[:3].tolist()
    assert tokens[0] % 8 < 4


def test_a_row_writes_and_leaves_only_the_tokens_it_keeps_of_a_multi_step():
    shape = DecodeShape(4, 8)
    compiled = _compile(1, SampledDecodeKey(shape, "temperature", 3))
    packed = np.zeros(shape.size, np.int32)
    batch = shape.split(packed)
    batch.context_lens[:] = [1, 2, 1, 0]
    batch.num_tokens[:] = [3, 1, 2, 0]
    batch.slots[:] = [0, 1, 2, 4]
    batch.block_tables[:3, 0] = [1, 2, 3]
    page = jnp.zeros((_BLOCKS, _BLOCK_SIZE, CONFIG.num_key_value_heads, CONFIG.head_dim))
    kv = tuple(Pages(page + 0, page + 0) for _ in range(CONFIG.num_hidden_layers))
    masks = np.zeros((5, -(-CONFIG.vocab_size // 32)), np.int32)
    fed = np.arange(5, dtype=np.int32)
    kv, last_tokens, outputs = compiled(tiny_params(), kv, packed, fed, masks)
    sampled = unpack_scores(np.asarray(outputs).swapaxes(0, 1)).tokens
    assert (sampled[1:3, 2] != sampled[[1, 2], [0, 1]]).any()
    assert last_tokens.tolist() == [*sampled[[0, 1, 2], [2, 0, 1]], 3, 4]
    for pages in jax.tree.leaves(kv):
        written = np.asarray(pages).any(axis=(2, 3))
        positions = [np.flatnonzero(written[block]).tolist() for block in (1, 2, 3)]
        assert positions == [[0, 1, 2], [1], [0, 1]]


@pytest.mark.parametrize("key", _FORWARDS, ids=lambda key: type(key).__name__)
def test_a_forward_reduces_twice_a_layer_and_once_for_the_embedding(key):
    text = _compile(2, key).as_text()
    reductions = re.findall(r"= \S+ all-reduce(?:-start)?\(", text)
    assert len(reductions) == 2 * CONFIG.num_hidden_layers + 1
    assert "all-gather" not in text


@pytest.fixture
def halved_prefill(monkeypatch):
    monkeypatch.setattr(
        "jaxinfer.serving.programs.kinds.prefill.part_sizes", lambda tokens, _: (tokens // 2,) * 2
    )
    return _compile.__wrapped__(2, PrefillShape(16, 4, 8))


def test_halves_of_a_prefill_reduce_in_turn_and_update_the_pages_in_place(halved_prefill):
    text = halved_prefill.as_text()
    reductions = re.findall(r"= \S+ all-reduce(?:-start)?\(", text)
    # A CPU sums both halves of the embedding at once, as a tuple; in layers each waits for another.
    # The last layer takes all tokens at once.
    assert len(reductions) == 2 * 2 * (CONFIG.num_hidden_layers - 1) + 2
    assert halved_prefill.memory_analysis().alias_size_in_bytes == _local_kv_bytes(2)
    assert not _pool_copies(text, 2)


def test_one_device_runs_no_collective():
    sampled = SampledDecodeKey(DecodeShape(4, 8), "temperature")
    for key in [*_FORWARDS, SamplerKey(4, "temperature"), sampled]:
        assert not re.search(r"all-(reduce|gather|to-all)", _compile(1, key).as_text())


def test_the_sampler_never_gathers_logits():
    text = _compile(2, SamplerKey(4, "truncate")).as_text()
    gathered = re.findall(r"= (?:f32|s32)\[([\d,]*)\]\S* all-gather", text)
    assert gathered
    largest = max(int(size) for shape in gathered for size in shape.split(",") if size)
    assert largest < CONFIG.vocab_size // 2
