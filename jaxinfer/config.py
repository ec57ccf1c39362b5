"""The engine's only configuration: one frozen dataclass, validated once, before anything runs."""

import dataclasses
import difflib
import typing
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from jaxinfer.checks import check_flag, check_integer, check_real, instead_of_vllm, show
from jaxinfer.eplb_config import EplbConfig
from jaxinfer.sampling_params import FreeLogprobs
from jaxinfer.speculative_config import SpeculativeConfig

MAX_LOGPROBS = 20
"""The default of `EngineConfig.max_logprobs`."""

DType = Literal["auto", "float32", "bfloat16", "float16"]
PreemptionMode = Literal["recompute", "swap"]
SchedulingPolicy = Literal["fcfs", "priority", "fair"]
LogprobsMode = Literal["raw_logprobs", "processed_logprobs", "temperature_logprobs"]
GenerationDefaults = Literal["auto", "vllm"]
KVCacheDType = Literal["auto", "fp8_e4m3", "int8"]
QuantizationScheme = Literal["fp8", "int8", "int4", "FP8_DYNAMIC", "W8A8", "W4A16_ASYM"]
RunnerType = Literal["generate", "pooling"]
AttentionBackend = Literal["auto", "mosaic", "triton", "numba", "xla"]

MAX_LORA_RANK = 512
_MAX_LENGTH = 1 << 24
_MAX_SEQS = 1 << 16
_MAX_CACHE_TOKENS = (1 << 31) - 1
_FEWEST_STAGED_TOKENS = 2048
_SHORT_STEP_CPU_BYTES = 64 << 20
_SHORT_STEP_GPU_BYTES = 4 << 30
_SHORT_LAYER_GPU_BYTES = 150 << 20
_RANGES: Mapping[str, tuple[float, float]] = {
    "seed": (0, 2**63 - 1),
    "max_model_len": (1, _MAX_LENGTH),
    "max_logprobs": (-1, _MAX_LENGTH),
    "max_num_seqs": (1, _MAX_SEQS),
    "max_num_batched_tokens": (1, _MAX_LENGTH),
    "block_size": (8, 256),
    "num_kv_blocks": (2, _MAX_CACHE_TOKENS),
    "gpu_memory_utilization": (0.0, 1.0),
    "swap_space": (0.0, 1e6),
    "kv_offloading_size": (0.0, 1e6),
    "kv_offloading_disk_size": (0.0, 1e9),
    "tensor_parallel_size": (1, 4096),
    "pipeline_parallel_size": (1, 4096),
    "context_parallel_size": (1, 4096),
    "data_parallel_size": (1, 4096),
    "prefill_replicas": (0, 4095),
    "expert_parallel_size": (1, 4096),
    "num_decode_steps": (1, 1024),
    "device_timeout": (0.0, 1e6),
    "max_loras": (1, 1024),
    "max_lora_rank": (1, MAX_LORA_RANK),
    "max_cpu_loras": (1, 1 << 20),
}
"""Least and largest values of numbers; fields are stored as plain ones, integers or not as here."""
QUANTIZATION_SCHEMES = typing.get_args(QuantizationScheme)
VLLM_DTYPES = {"half": "float16", "float": "float32"}
VLLM_CACHE_DTYPES = {"fp8": "fp8_e4m3"}


def max_kv_blocks(block_size: int) -> int:
    """Most KV blocks of `block_size` tokens: block * block_size + offset must fit int32."""
    return _MAX_CACHE_TOKENS // block_size


def unknown_keyword(owner: str, name: str, known: Iterable[str]) -> TypeError:
    """The error for a keyword that `owner` does not have.

    Args:
        owner: the class or function, as the user wrote it, for example "LLM".
        name: the keyword that is not known.
        known: every keyword that is.

    Returns:
        A TypeError (to be raised by the caller) that names the keyword and either what to write
        in place of a vLLM argument or the nearest valid keyword.
    """
    message = f"{owner}() got an unknown keyword argument {name!r}"
    if (instead := instead_of_vllm("engine").get(name)) is not None:
        return TypeError(f"{message}: {instead}")
    known = sorted(known)
    nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.75)
    if nearest:
        return TypeError(f"{message}; did you mean {nearest[0]!r}?")
    return TypeError(
        f"{message}; valid ones are {', '.join(known)} (docs/from-vllm.md says what to write for "
        "vLLM's others)"
    )


@typing.no_type_check  # its fields check themselves, by name; run-time checkers would come first
@dataclasses.dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Everything that decides how an engine runs; vLLM's meaning where vLLM has the name.

    Attributes:
        model: a directory, a Hugging Face hub id, or "bundled-experts", a small model with experts
            that is bundled, too; None is the bundled model.
        tokenizer: a directory or hub id to take the tokenizer from; None is the model's own.
        skip_tokenizer_init: load no tokenizer: only token ids go in and out.
        runner: what the engine is for: "generate" does everything; "pooling" has only the programs
            that read prompts, for vectors, decisions, relevance and classes, and so starts sooner.
        generation_config: sampling defaults: "auto" takes the model's `generation_config.json`,
            "vllm" the defaults of `SamplingParams` (the file's end-of-sequence ids always count).
        hf_overrides: a dictionary of fields of the model's config.json to replace, such as
            `rope_scaling`, `rope_theta` and `max_position_embeddings`; dictionaries in it are
            merged with the file's. None is the file as it is.
        revision: branch, tag or commit on the hub; None is its main branch.
        dtype: of weights and activations, and of the KV cache unless `kv_cache_dtype` says
            otherwise; "auto" is the checkpoint's own on a GPU and float32 on a CPU. A name ("half"
            and "float" are vLLM's for float16 and float32), or a type such as ``jnp.bfloat16``;
            kept as a name.
        quantization: quantizes plain weights while they are loaded, and with every update: "fp8" in
            blocks of 128 by 128 with inputs in groups of 128, "int8" with a scale for each output,
            "int4" in groups of 128 inputs; or "FP8_DYNAMIC", "W8A8" and "W4A16_ASYM", as
            llm-compressor names them. None is as the checkpoint has them.
        seed: source of the seeds of requests without their own; in [0, 2**63).
        max_model_len: most tokens of prompt and output together; None is the model's own limit, or
            what fits the KV cache, if that is less: `num_kv_blocks`, the device's memory or, on a
            CPU, a quarter of what is free. vLLM's -1 and "auto" are written as None.
        max_logprobs: most log-probabilities a request may ask for at each position; -1 is the whole
            vocabulary. Steps that report some compute this many.
        logprobs_mode: the source of `logprobs`: the model's own logits ("raw_logprobs"), or the
            sampled distribution, after edits, temperature and truncation
            ("processed_logprobs", where a token that can't be drawn has minus infinity), or the
            model's own logits divided by the request's temperature ("temperature_logprobs", what
            losses of reinforcement learning compute again; 1 for greedy requests).
        max_num_seqs: most sequences that run at once.
        max_num_batched_tokens: most tokens in one step; None is 16384 on a GPU, shared by the
            stages of a pipeline, and 2048 on a CPU, and never less than `max_num_seqs`. Longer
            prompts are prefilled in chunks.
        block_size: tokens in a KV block; a power of two from 8 to 256.
        kv_cache_dtype: of keys and values in the cache: the model's ("auto"); "fp8_e4m3" ("fp8"),
            eight bits a value without scales, in half of bfloat16's memory, which "mosaic" and
            "xla" read; or "int8", an integer a value and a float32 scale for each token and head,
            which "numba" and "xla" read. Log-probabilities change a little by either.
        num_kv_blocks: KV blocks to allocate (block 0 is reserved for padding); None is what the
            device's memory holds.
        gpu_memory_utilization: share of each device's memory that the engine may use, in (0, 1].
            JAX's allocator never gives more than its own share, which is 75% unless the environment
            variable XLA_CLIENT_MEM_FRACTION is set before JAX starts; the commands set it.
        enable_prefix_caching: keep full blocks of finished requests for prompts that share them.
        swap_space: GiB of host memory that holds the blocks of preempted requests; taken at start,
            and pinned on GPUs.
        preemption_mode: what happens to a preempted request: its tokens are computed again
            ("recompute"), or its blocks move to host memory ("swap", needs `swap_space`).
        kv_offloading_size: GiB of host memory for blocks that leave the prefix cache, which come
            back when a prompt has them again, if that is faster than computing them; 0 keeps none.
        kv_offloading_directory: where blocks that leave this host memory are kept in files, which
            later processes with the same weights, layout and versions find. None is nowhere. It
            must be this user's alone to write to; blocks tell what was in prompts.
        kv_offloading_disk_size: GiB of these files at most; the least recently used go.
        scheduling_policy: which waiting request is admitted first: the oldest ("fcfs"), the oldest
            of the lowest `priority` ("priority"), or the same, but none waits for ever ("fair"): a
            priority counts as having come earlier or later by 64 requests a level.
        online: keep steps short, for streams and for first tokens: while single requests arrive
            prompts come in chunks of 2048 tokens (512 on a CPU), and by default no step has more
            than 8192 on a GPU.
        tensor_parallel_size: devices the model is spread over; with `pipeline_parallel_size`, each
            of its stages.
        pipeline_parallel_size: stages that the model's layers are split into, each on
            `tensor_parallel_size` devices of its own, for models that fit no fewer: a token takes
            as long as on the devices of one stage, and as many batches run at once as there are
            stages.
        context_parallel_size: devices, each with all weights, that the tokens of every sequence are
            dealt to in turn, a power of two: long prompts are read sooner, and the devices' caches
            add up. With `tensor_parallel_size` it counts groups of that many devices. A KV block
            then counts `block_size` tokens on each of them.
        data_parallel_size: replicas of the model, each on `tensor_parallel_size` devices of its
            own, behind one queue; sizes and limits here are per replica.
        prefill_replicas: how many of the `data_parallel_size` replicas only compute prompts, and
            hand their KV blocks to the others in host memory (`kv_offloading_size`), so that
            prompts don't delay the tokens of other requests. With 0 all replicas do both.
        enable_expert_parallel: give each device of `tensor_parallel_size` whole experts, in place
            of a share of each expert's width; everything else of the model is split as before.
        expert_parallel_size: groups of these devices that have experts of their own, whose width
            the devices of a group share; needs `enable_expert_parallel`. None is a group of each
            device.
        enable_eplb: let `LLM.rebalance_experts`, or a server's /rebalance_experts, move experts
            between these groups, by their load or by what `expert_statistics` has counted; needs
            `enable_expert_parallel`.
        eplb_config: an `EplbConfig`, or a dictionary of its field, {"num_redundant_experts": 16}:
            how many experts of each layer are held once more. None holds none twice.
        attention_backend: "auto" takes the fastest one that the device supports (`jaxinfer env`
            says which, and why); a backend that is named and impossible is an error.
        compilation_cache_dir: where traced and compiled programs are kept between processes; ""
            keeps none. None is ~/.cache/jaxinfer/xla, or in XDG_CACHE_HOME. Files there are run as
            programs, so a directory that another user owns or may write to is not used, with a
            warning.
        compile_ahead: compile every shape at start-up, so that nothing compiles while requests run;
            False compiles each at its first use. None is True on a GPU, and False on a CPU, where
            compiling takes longer than most runs.
        eager: run each step operation by operation, for debuggers: breakpoints and prints inside
            the model, a logits processor or a sampler see arrays with values. On one device, with
            the "xla" backend unless another is named, and many times slower.
        show_progress: progress bars and the start-up summary on stderr.
        num_decode_steps: decode steps of one launch while no request waits and at most 8 sequences
            run that need nothing but temperature, `min_p`, `top_k` and `top_p`: a launch costs the
            host as much as several steps of a small model take the device. None is 8, or 4 with
            `online`, where a step reads up to 4 GiB of weights, or 150 MiB for each layer (64 MiB
            in all on a CPU), such as Qwen3-1.7B's, or one sequence's of 30B-A3B; else 1.
        speculative_config: drafts of the tokens to come, verified several at a time: a
            `SpeculativeConfig`, or a dictionary of its fields such as {"method": "ngram"} or
            {"method": "dflash", "model": "DIRECTORY"}. None drafts nothing.
        expert_statistics: count the tokens that go through each expert, for
            `LLM.expert_statistics` and a server's metrics: each layer of a step takes a little
            longer. Only for models with experts.
        enable_lora: let requests name a LoRA adapter (`LoRARequest`), many of them in one batch.
        max_loras: adapters on the devices at once, and so in one step; more take turns. They take
            the memory of `max_loras` adapters of `max_lora_rank`, whatever is loaded.
        max_lora_rank: the largest rank of an adapter.
        max_cpu_loras: adapters that the host keeps: with more, those read from files are forgotten,
            the least recently used first, and read again when asked for. None keeps all.
        device_timeout: seconds that a device may take for one step, and at start for the first runs
            of one program; after that the process ends and names the device and the program,
            because such a wait can't be interrupted. 0 waits forever; None is 300 on a GPU, 60 at
            start, and 0 on a CPU, whose steps may be that long.

    Raises:
        TypeError: a field has the wrong type; names the field.
        ValueError: a field is out of its range; names the field and the range.
    """

    model: str | None = None
    tokenizer: str | None = None
    skip_tokenizer_init: bool = False
    runner: RunnerType = "generate"
    generation_config: GenerationDefaults = "auto"
    hf_overrides: Mapping[str, Any] | None = dataclasses.field(default=None, hash=False)
    revision: str | None = None
    dtype: DType = "auto"
    quantization: QuantizationScheme | None = None
    seed: int = 0
    max_model_len: int | None = None
    max_logprobs: int = MAX_LOGPROBS
    logprobs_mode: LogprobsMode = "raw_logprobs"
    max_num_seqs: int = 256
    max_num_batched_tokens: int | None = None
    block_size: int = 16
    kv_cache_dtype: KVCacheDType = "auto"
    num_kv_blocks: int | None = None
    gpu_memory_utilization: float = 0.9
    enable_prefix_caching: bool = True
    swap_space: float = 0.0
    preemption_mode: PreemptionMode = "recompute"
    kv_offloading_size: float = 0.0
    kv_offloading_directory: str | None = None
    kv_offloading_disk_size: float = 0.0
    scheduling_policy: SchedulingPolicy = "fcfs"
    online: bool = False
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    context_parallel_size: int = 1
    data_parallel_size: int = 1
    prefill_replicas: int = 0
    enable_expert_parallel: bool = False
    expert_parallel_size: int | None = None
    enable_eplb: bool = False
    eplb_config: EplbConfig | None = None
    attention_backend: AttentionBackend = "auto"
    compilation_cache_dir: str | None = None
    compile_ahead: bool | None = None
    eager: bool = False
    show_progress: bool = True
    num_decode_steps: int | None = None
    speculative_config: SpeculativeConfig | None = None
    expert_statistics: bool = False
    enable_lora: bool = False
    max_loras: int = 4
    max_lora_rank: int = 16
    max_cpu_loras: int | None = None
    device_timeout: float | None = None

    def __post_init__(self) -> None:
        for name in ("model", "tokenizer", "revision", "kv_offloading_directory"):
            _check_text(name, getattr(self, name), may_be_empty=False)
        _check_text("compilation_cache_dir", self.compilation_cache_dir, may_be_empty=True)
        check_overrides(self.hf_overrides)
        object.__setattr__(self, "dtype", _dtype_name(self.dtype))
        if self.quantization is not None and self.quantization not in QUANTIZATION_SCHEMES:
            raise ValueError(
                f"quantization must be one of {', '.join(QUANTIZATION_SCHEMES)}, got "
                f"{self.quantization!r}; a quantized checkpoint's config.json decides: leave it out"
            )
        if isinstance(cache := self.kv_cache_dtype, str):
            object.__setattr__(self, "kv_cache_dtype", VLLM_CACHE_DTYPES.get(cache, cache))
        for field in dataclasses.fields(self):
            name, value = field.name, getattr(self, field.name)
            if typing.get_origin(field.type) is Literal:
                _check_choice(name, value, typing.get_args(field.type))
            elif field.type is bool:
                check_flag(name, value)
            elif name in _RANGES and (value is not None or field.default is not None):
                check: Any = check_real if isinstance(_RANGES[name][0], float) else check_integer
                object.__setattr__(self, name, check(name, value, *_RANGES[name]))
        self._check_experts()
        self._check_contexts()
        self._check_adapters()
        self._check_pipeline()
        if self.prefill_replicas:
            self._check_prefill_replicas()
        if self.speculative_config is not None:
            self._check_speculation(SpeculativeConfig.of(self.speculative_config))
        if self.skip_tokenizer_init and self.tokenizer is not None:
            raise ValueError("skip_tokenizer_init and tokenizer exclude each other; leave one out")
        if self.block_size & (self.block_size - 1):
            raise ValueError(f"block_size must be a power of two, got {self.block_size}")
        most = max_kv_blocks(self.block_tokens)
        if self.num_kv_blocks is not None and self.num_kv_blocks > most:
            size = "block_size" + " x context_parallel_size" * (self.context_parallel_size > 1)
            raise ValueError(
                f"num_kv_blocks ({self.num_kv_blocks}) times {size} ({self.block_tokens}) must "
                "be below 2**31, for places in the KV cache are int32; set num_kv_blocks to at "
                f"most {most}"
            )
        budget = self.max_num_batched_tokens
        if budget is not None and budget < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens ({budget}) must be at least max_num_seqs "
                f"({self.max_num_seqs}); lower max_num_seqs or raise it"
            )
        if self.gpu_memory_utilization == 0:
            raise ValueError("gpu_memory_utilization must be above 0, got 0")
        if self.preemption_mode == "swap" and self.swap_space == 0:
            raise ValueError(
                "preemption_mode='swap' needs host memory: set swap_space (GiB) above 0"
            )
        if self.kv_offloading_size and not self.enable_prefix_caching:
            raise ValueError(
                "kv_offloading_size keeps blocks of the prefix cache: set enable_prefix_caching"
            )
        if self.kv_offloading_directory is not None and not self.kv_offloading_size:
            raise ValueError(
                "kv_offloading_directory keeps blocks that leave host memory: set "
                "kv_offloading_size (GiB) above 0"
            )
        if (self.kv_offloading_directory is None) != (self.kv_offloading_disk_size == 0):
            raise ValueError(
                "kv_offloading_directory and kv_offloading_disk_size (GiB, above 0) go together: "
                "give both or neither"
            )
        ahead = self.compile_ahead
        if not isinstance(ahead, bool | None):
            raise TypeError(f"compile_ahead must be True, False or None, got {show(ahead)}")
        if ahead and self.eager:
            raise ValueError("compile_ahead and eager exclude each other; leave one out")

    def _check_prefill_replicas(self) -> None:
        if self.prefill_replicas >= self.data_parallel_size:
            raise ValueError(
                f"prefill_replicas ({self.prefill_replicas}) must be fewer than data_parallel_size "
                f"({self.data_parallel_size}), for others decode; raise data_parallel_size"
            )
        if not self.kv_offloading_size:
            raise ValueError(
                "prefill_replicas hand KV blocks over in host memory: set kv_offloading_size (GiB, "
                "for each replica) above 0"
            )
        if self.runner == "pooling":
            raise ValueError(
                "prefill_replicas spare answers, and runner='pooling' gives none; leave one out"
            )

    def _check_experts(self) -> None:
        if self.eplb_config is not None:
            object.__setattr__(self, "eplb_config", EplbConfig.of(self.eplb_config))
        for name, needed in (
            ("expert_parallel_size", "enable_expert_parallel"),
            ("enable_eplb", "enable_expert_parallel"),
            ("eplb_config", "enable_eplb"),
        ):
            if getattr(self, name) not in (None, False) and not getattr(self, needed):
                raise ValueError(f"{name} needs {needed}=True; add that, or leave {name} out")

    def _check_contexts(self) -> None:
        size = self.context_parallel_size
        if size & (size - 1):
            raise ValueError(f"context_parallel_size must be a power of two, got {size}")
        if size == 1:
            return
        for name, is_wanted in (
            ("speculative_config", self.speculative_config is not None),
            ("enable_lora", self.enable_lora),
            ("enable_expert_parallel", self.enable_expert_parallel),
            ("expert_statistics", self.expert_statistics),
            ("data_parallel_size", self.data_parallel_size > 1),
            ("kv_offloading_size", self.kv_offloading_size > 0),
            ("preemption_mode='swap'", self.preemption_mode == "swap"),
            ("eager", self.eager),
        ):
            if is_wanted:
                raise ValueError(
                    f"context_parallel_size and {name} exclude each other; leave one out"
                )
        if self.attention_backend not in ("auto", "mosaic", "xla"):
            raise ValueError(
                f"attention_backend={self.attention_backend!r} can't attend over parts of a "
                "sequence, as context_parallel_size needs; take mosaic, xla or auto"
            )

    def _check_adapters(self) -> None:
        fields = {field.name: field.default for field in dataclasses.fields(self)}
        for name in ("max_loras", "max_lora_rank", "max_cpu_loras"):
            if not self.enable_lora and getattr(self, name) != fields[name]:
                raise ValueError(f"{name} needs enable_lora=True; add that, or leave {name} out")
        if not self.enable_lora:
            return
        if self.runner == "pooling":
            raise ValueError("enable_lora needs runner='generate'; leave one out")
        if self.max_cpu_loras is not None and self.max_cpu_loras < self.max_loras:
            raise ValueError(
                f"max_cpu_loras ({self.max_cpu_loras}) must be at least max_loras "
                f"({self.max_loras}); raise it or leave it out"
            )

    def _check_pipeline(self) -> None:
        if self.pipeline_parallel_size == 1:
            return
        for name, is_given in (
            ("context_parallel_size", self.context_parallel_size > 1),
            ("data_parallel_size", self.data_parallel_size > 1),
            ("enable_expert_parallel", self.enable_expert_parallel),
            ("expert_statistics", self.expert_statistics),
            ("enable_lora", self.enable_lora),
            ("speculative_config", self.speculative_config is not None),
            ("kv_offloading_size", self.kv_offloading_size > 0),
            ("preemption_mode='swap'", self.preemption_mode == "swap"),
            ("num_decode_steps", (self.num_decode_steps or 1) > 1),
            ("eager", self.eager),
        ):
            if is_given:
                raise ValueError(
                    f"pipeline_parallel_size and {name} exclude each other; leave one out"
                )

    def _check_speculation(self, drafts: SpeculativeConfig) -> None:
        object.__setattr__(self, "speculative_config", drafts)
        if self.runner == "pooling":
            raise ValueError(
                "speculative_config drafts answers, and runner='pooling' gives none; leave one out"
            )
        if drafts.corpus and self.skip_tokenizer_init:
            raise ValueError(
                "speculative_config: corpus needs the tokenizer; leave skip_tokenizer_init out"
            )

    @classmethod
    def from_keywords(
        cls, keywords: Mapping[str, Any], *, owner: str = "EngineConfig", also: Iterable[str] = ()
    ) -> "EngineConfig":
        """Build a configuration from a user's keyword arguments.

        Args:
            keywords: the arguments, by field name.
            owner: what the user called, for the error message.
            also: names that `owner` takes besides; offered as a nearest match too.

        Raises:
            TypeError: a keyword is not known; names it and its nearest valid neighbour.
            ValueError: as for the constructor.
        """
        known = {field.name for field in dataclasses.fields(cls)}
        for name in keywords:
            if name not in known:
                raise unknown_keyword(owner, name, known | set(also))
        return cls(**keywords)

    @property
    def block_tokens(self) -> int:
        """Tokens in a KV block, over all devices that a sequence's tokens are dealt to."""
        return self.block_size * self.context_parallel_size

    @property
    def redundant_experts(self) -> int:
        """Experts that each layer holds once more."""
        return 0 if self.eplb_config is None else self.eplb_config.num_redundant_experts

    def count_logprobs(self, vocab_size: int) -> int:
        """Most log-probabilities at a position for a vocabulary of this size."""
        return vocab_size if self.max_logprobs == -1 else min(self.max_logprobs, vocab_size)

    def free_logprobs(self, *, has_custom_functions: bool) -> FreeLogprobs:
        """Requests whose log-probabilities cost nothing, see `FreeLogprobs`."""
        if self.logprobs_mode == "processed_logprobs":
            return "all"
        if has_custom_functions:
            return "none"
        return "unscaled" if self.logprobs_mode == "raw_logprobs" else "untruncated"

    @property
    def swapped_gib(self) -> float:
        """GiB of host memory that preempted requests' blocks have; 0 where they are recomputed."""
        return self.swap_space if self.preemption_mode == "swap" else 0.0

    def token_budget(self, platform: str) -> int:
        """Most tokens in one step on `platform` ("cpu", "gpu")."""
        if self.max_num_batched_tokens is not None:
            return self.max_num_batched_tokens
        on_gpu = 8192 if self.online else 16384
        if self.pipeline_parallel_size > 1:  # more steps leave stages less time without one
            on_gpu = max(on_gpu // self.pipeline_parallel_size, _FEWEST_STAGED_TOKENS)
        return max(2048 if platform == "cpu" else on_gpu, self.max_num_seqs)

    def decode_steps(self, platform: str, read_bytes: int, num_layers: int) -> int:
        """Decode steps of a launch of few rows.

        Args:
            platform: "cpu" or "gpu".
            read_bytes: weights of a device that a step of these rows reads.
            num_layers: of the model; a launch on a GPU takes the host longer for each.
        """
        if self.num_decode_steps is not None:
            return self.num_decode_steps
        if self.eager:  # a step is what a debugger follows
            return 1
        # Steps of larger weights hide a launch, and several of them would let a stream stutter.
        most = max(_SHORT_STEP_GPU_BYTES, _SHORT_LAYER_GPU_BYTES * num_layers)
        if read_bytes > (_SHORT_STEP_CPU_BYTES if platform == "cpu" else most):
            return 1
        return 4 if self.online else 8

    def step_time_limit(self, platform: str) -> float:
        """Most seconds for a step on `platform`; 0 for any time."""
        if self.device_timeout is not None:
            return self.device_timeout
        return 0.0 if platform == "cpu" else 300.0

    def start_time_limit(self, platform: str) -> float:
        """Most seconds for the first runs of one program on `platform`; 0 for any time.

        Less than a step's, which may have to wait for other programs of the same process.
        """
        if self.device_timeout is not None:
            return self.device_timeout
        return 0.0 if platform == "cpu" else 60.0

    def compiles_ahead(self, platform: str) -> bool:
        """Whether every shape is compiled at start-up on `platform`."""
        if self.eager:
            return False
        return platform != "cpu" if self.compile_ahead is None else self.compile_ahead

    def resolve_dtype(self, checkpoint_dtype: str, platform: str) -> str:
        """Name of the dtype to serve in, given the checkpoint's and the platform."""
        if self.dtype != "auto":
            return self.dtype
        return "float32" if platform == "cpu" else checkpoint_dtype


def _dtype_name(value: object) -> object:
    """A dtype's name, for a NumPy or JAX type; anything else as it is, to be refused by name."""
    if isinstance(value, str):
        return VLLM_DTYPES.get(value, value)
    return getattr(getattr(value, "dtype", value), "name", value)


def check_overrides(value: object) -> None:
    """Refuse an `hf_overrides` that is no dict of names."""
    if callable(value):
        raise TypeError("hf_overrides can't be a function; write a dict of config.json's fields")
    if value is None:
        return
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise TypeError(f"hf_overrides must be a dict of config.json's fields, got {value!r}")


def _check_text(name: str, value: object, *, may_be_empty: bool) -> None:
    if value is None:
        return
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a string or None, got {value!r}")
    if not value and not may_be_empty:
        raise ValueError(f"{name} must not be an empty string; leave it out or give None")


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")
