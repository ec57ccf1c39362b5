"""The plan of a device's memory: weights, the largest step, slots, and KV blocks in the rest."""

import dataclasses

from jaxinfer.config import EngineConfig
from jaxinfer.errors import CapacityError
from jaxinfer.kernels.attention.page_limit import most_pages
from jaxinfer.planning.adapters import adapter_bytes
from jaxinfer.planning.blocks import (
    blocks_beside_pages,
    blocks_on_devices,
    engine_bytes,
    longest_that_fits,
    sequences_that_fit,
    usable_tokens,
)
from jaxinfer.planning.devices import Chip
from jaxinfer.planning.drafts import NO_DRAFTS, DraftMemory
from jaxinfer.planning.shapes import BYTES_OF, ModelShape
from jaxinfer.planning.stages import StageShape, stage_shapes

# The sampler of all rows holds the float32 logits about three times: 470 MB for 256 rows of 151,936
# in the compiled programs of an H200.
_LOGITS_HELD = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class StageMemory:
    """Bytes of each device of one stage of a pipeline.

    Attributes:
        first_layer: from 0.
        num_layers: consecutive ones.
        weight_bytes: of its layers, and of the embedding or the head.
        slot_bytes: of the last stage, which samples; 0 of others.
        step_bytes: temporaries of its largest step.
        kv_bytes: of all blocks.
        num_kv_blocks: that would fit it alone.
    """

    first_layer: int
    num_layers: int
    weight_bytes: int
    slot_bytes: int
    step_bytes: int
    kv_bytes: int
    num_kv_blocks: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class MemoryPlan:
    """Bytes of each device.

    Attributes:
        device_bytes: all of it.
        engine_bytes: the engine's share of it (`gpu_memory_utilization`, the allocator's share).
        weight_bytes: the model's parameters.
        slot_bytes: token counts of each sequence's slot, for penalties; 0 of an engine for pooling.
        draft_bytes: texts that drafts are made from; 0 without.
        draft_head_bytes: a draft head's parameters; 0 without.
        adapter_bytes: slots of LoRA adapters; 0 without.
        staged_bytes: KV blocks on their way to host memory and back; 0 without tiers.
        step_bytes: temporaries of the largest step. The engine compiles it to know; this estimate
            agrees with recorded engines within 0.4% of the device's memory.
        kv_bytes_per_token: keys and values of one token, all layers; with context parallelism each
            device's share of them.
        draft_bytes_per_token: beside them, what a draft head reads of a token; 0 without.
        block_size: tokens in a block.
        num_kv_blocks: block 0 included, which is reserved for padding; 0 if none fit.
        num_host_tokens: tokens that the host tier keeps beside the cache; 0 without.
        max_model_len: the model's own limit, in tokens.
        stages: of a pipeline, of which the attributes above tell the one with the fewest blocks:
            all have as many. Empty without.
    """

    device_bytes: int
    engine_bytes: int
    weight_bytes: int
    slot_bytes: int
    draft_bytes: int
    draft_head_bytes: int
    adapter_bytes: int
    staged_bytes: int
    step_bytes: int
    kv_bytes_per_token: int
    draft_bytes_per_token: int
    block_size: int
    num_kv_blocks: int
    num_host_tokens: int
    max_model_len: int
    stages: tuple["StageMemory", ...] = ()

    @property
    def kv_bytes(self) -> int:
        """Bytes of all blocks."""
        token_bytes = self.kv_bytes_per_token + self.draft_bytes_per_token
        return self.num_kv_blocks * self.block_size * token_bytes

    @property
    def num_kv_tokens(self) -> int:
        """Tokens that the cache holds."""
        return max(usable_tokens(self.num_kv_blocks, self.block_size), 0)

    def sequences(self, context: int) -> int:
        """Sequences of `context` tokens that fit at once."""
        return max(sequences_that_fit(self.num_kv_blocks, self.block_size, context), 0)

    def longest(self, num_seqs: int) -> int:
        """Tokens that each of `num_seqs` sequences may have at once, up to the model's limit."""
        fits = max(longest_that_fits(self.num_kv_blocks, self.block_size, num_seqs), 0)
        return min(fits, self.max_model_len)


def plan_memory(
    shape: ModelShape,
    chip: Chip,
    dtype: str,
    config: EngineConfig,
    drafts: DraftMemory = NO_DRAFTS,
) -> MemoryPlan:
    """Fill a device as the engine does at its start, with an estimate of its largest step.

    Args:
        shape: the model.
        chip: each device.
        dtype: of keys and values, and of weights that are not quantized.
        config: sizes and the degrees of parallelism.
        drafts: what those of `config` take, from `draft_memory`.

    Raises:
        ValueError: there are fewer layers than stages.
    """
    stages = stage_shapes(shape, config.pipeline_parallel_size)
    plans = [_plan_stage(stage, chip, dtype, config, drafts) for stage in stages]
    if len(plans) == 1:
        return plans[0]
    tightest = min(plans, key=lambda plan: plan.num_kv_blocks)
    blocks = tightest.num_kv_blocks
    return dataclasses.replace(
        tightest,
        stages=tuple(
            StageMemory(
                first_layer=stage.layers.start,
                num_layers=len(stage.layers),
                weight_bytes=plan.weight_bytes,
                slot_bytes=plan.slot_bytes,
                step_bytes=plan.step_bytes,
                kv_bytes=dataclasses.replace(plan, num_kv_blocks=blocks).kv_bytes,
                num_kv_blocks=plan.num_kv_blocks,
            )
            for stage, plan in zip(stages, plans, strict=True)
        ),
    )


def _plan_stage(
    stage: StageShape, chip: Chip, dtype: str, config: EngineConfig, drafts: DraftMemory
) -> MemoryPlan:
    """One stage as if it were alone, or a whole model."""
    num_devices, shape = config.tensor_parallel_size, stage.shape
    kv_bytes = shape.kv_bytes_per_token(BYTES_OF[dtype], num_devices, config.kv_cache_dtype)
    kv_bytes = -(-kv_bytes // config.context_parallel_size)
    weight_bytes = stage.weight_bytes(dtype, num_devices, config.redundant_experts)
    slot_bytes = (config.max_num_seqs + 1) * shape.vocab_size // num_devices * 4
    samples = stage.has_head and config.runner != "pooling"
    if not samples:
        slot_bytes = 0
    step_bytes = _step_bytes(shape, dtype, config, drafts, samples=samples)
    adapters = adapter_bytes(shape, dtype, config)
    block_bytes = config.block_tokens * (kv_bytes + drafts.bytes_per_token)
    staged = _staged_bytes(config, block_bytes)
    beside = slot_bytes + drafts.weight_bytes + drafts.text_bytes + adapters + staged
    most = engine_bytes(chip.memory_bytes, utilization=config.gpu_memory_utilization)
    try:
        blocks = blocks_on_devices(
            most - weight_bytes - beside,
            block_bytes=block_bytes,
            step_bytes=step_bytes,
            utilization=config.gpu_memory_utilization,
        )
    except CapacityError:
        blocks = 0
    heads = max(shape.kv_heads_of_device(num_devices), drafts.heads)
    return MemoryPlan(
        device_bytes=chip.memory_bytes,
        engine_bytes=most,
        weight_bytes=weight_bytes,
        slot_bytes=slot_bytes,
        draft_bytes=drafts.text_bytes,
        draft_head_bytes=drafts.weight_bytes,
        adapter_bytes=adapters,
        staged_bytes=staged,
        step_bytes=step_bytes,
        kv_bytes_per_token=kv_bytes,
        draft_bytes_per_token=drafts.bytes_per_token,
        block_size=config.block_tokens,
        num_kv_blocks=min(blocks, most_pages(config.block_tokens, heads)),
        num_host_tokens=_host_blocks(config, block_bytes) * config.block_size,
        max_model_len=shape.max_context_length,
    )


def _staged_bytes(config: EngineConfig, block_bytes: int) -> int:
    """Room for blocks on their way to host memory and back."""
    if not config.kv_offloading_size:
        return 0
    return block_bytes * blocks_beside_pages(config.token_budget("gpu"), config.block_size)


def _host_blocks(config: EngineConfig, block_bytes: int) -> int:
    """Blocks in an engine's host memory, which holds every device's part of one."""
    size = int(config.kv_offloading_size * 2**30)
    return size // (block_bytes * config.tensor_parallel_size)


def _step_bytes(
    shape: ModelShape, dtype: str, config: EngineConfig, drafts: DraftMemory, *, samples: bool
) -> int:
    """The larger of a full prefill's activations and, where tokens are sampled, their logits."""
    num_devices, tokens = config.tensor_parallel_size, config.token_budget("gpu")
    contexts = config.context_parallel_size
    prefill = prefill_bytes(
        shape, dtype, tokens=-(-tokens // contexts), devices=num_devices, states=drafts.num_states
    )
    if contexts > 1:  # queries and outputs of all tokens, as they are and as they are exchanged
        heads = 4 * shape.num_attention_heads // num_devices * shape.head_dim
        prefill = max(prefill, tokens * heads * BYTES_OF[dtype])
    if not samples:
        return prefill
    logits = drafts.most_rows(config.max_num_seqs) * shape.vocab_size // num_devices * 4
    return max(prefill, _LOGITS_HELD * logits)


def prefill_bytes(
    shape: ModelShape, dtype: str, *, tokens: int, devices: int, states: int = 0
) -> int:
    """Temporaries of a prefill on each device, estimated.

    It holds the gate, up and product of an MLP, or the outputs of experts, and the residual stream
    twice; of integer weights also the plain matrices of gate and up.

    Args:
        shape: the model.
        dtype: of activations.
        tokens: of the step.
        devices: the tensor-parallel degree.
        states: hidden states of each token that a draft head reads.
    """
    mlp = 3 * shape.intermediate_size // devices if shape.num_dense_layers else 0
    mlp = max(mlp, shape.experts_per_token * shape.hidden_size)
    values = tokens * (mlp + (2 + states) * shape.hidden_size)
    if shape.quantization is not None:
        values += 2 * (shape.hidden_size * shape.intermediate_size // devices)
    return values * BYTES_OF[dtype]
