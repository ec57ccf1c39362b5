"""The report of an engine's start: cache and memory sizes, backend, and where the time went."""

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class StartupReport:
    """Sizes, limits and choices of an engine, known before its first request.

    Attributes:
        num_kv_blocks: blocks, including block 0, which is reserved for padding.
        num_kv_tokens: tokens that fit the cache.
        kv_bytes: bytes of the pages on each device.
        max_model_len: most tokens of a sequence.
        max_context_length: the model's own limit.
        is_cut: whether `max_model_len` is below it because no more fits the cache.
        full_length_concurrency: sequences of that length that fit at once.
        attention_backend: the implementation chosen.
        attention_reason: why.
        platform: of the devices.
        num_devices: how many share the model.
        weight_bytes: of the parameters on each device.
        step_bytes: what the largest step needs beside weights and pages, on each device; None where
            `num_kv_blocks` was given or the device is a CPU.
        num_replicas: of the model; blocks, tokens and devices count all of them.
    """

    num_kv_blocks: int
    num_kv_tokens: int
    kv_bytes: int
    max_model_len: int
    max_context_length: int
    is_cut: bool
    full_length_concurrency: float
    attention_backend: str
    attention_reason: str
    platform: str
    num_devices: int
    weight_bytes: int
    step_bytes: int | None
    num_replicas: int = 1

    def __str__(self) -> str:
        devices = f"{self.num_devices} {self.platform.upper()} device" + "s" * (
            self.num_devices > 1
        )
        if self.num_replicas > 1:
            devices += f" in {self.num_replicas} replicas"
        text = (
            f"KV cache: {self.num_kv_blocks:,} blocks, {self.num_kv_tokens:,} tokens, "
            f"{self.kv_bytes / 2**30:.2f} GiB on each of {devices}; "
            f"{self.full_length_concurrency:.1f} sequences of {self.max_model_len:,} tokens at "
            f"once. Attention: {self.attention_backend} ({self.attention_reason})"
        )
        if self.is_cut:
            text += (
                f"\nmax_model_len is {self.max_model_len:,}, the longest that fits the KV cache; "
                f"the model could do {self.max_context_length:,} "
                "(set max_model_len to another length)"
            )
        return text

    def of_replicas(self, count: int) -> "StartupReport":
        """The report of a number of replicas, each like this one."""
        return replace(
            self,
            num_kv_blocks=self.num_kv_blocks * count,
            num_kv_tokens=self.num_kv_tokens * count,
            full_length_concurrency=self.full_length_concurrency * count,
            num_devices=self.num_devices * count,
            num_replicas=count,
        )


@dataclass(frozen=True)
class StartUpTimes:
    """Seconds of one engine's start, and the number of programs found on disk.

    Attributes:
        load_s: tokenizer and weights, until they are on the devices.
        plan_s: choosing shapes and counting KV blocks; on a GPU the largest steps are compiled
            for that, with few layers, while others begin to.
        compile_s: compiling the other programs ahead, or reading them; on one GPU running each on
            padding, too.
        allocate_s: making the KV pages.
        lower_s: of `plan_s` and `compile_s`, what the thread that hands programs to the compiler
            spent on tracing, on reading traced ones, and on waiting for worker processes.
        xla_s: time in the compiler, or in reading what it compiled; summed over its threads.
        num_traced: programs traced in this process.
        num_read: programs found on disk: compiled, or traced by a worker or an earlier process.
    """

    load_s: float
    plan_s: float
    compile_s: float
    allocate_s: float
    lower_s: float
    xla_s: float
    num_traced: int
    num_read: int
