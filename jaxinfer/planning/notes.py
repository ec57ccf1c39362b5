"""Remarks for readers of a plan's numbers: what is expected and why, and what is left out."""

from jaxinfer.planning.devices import Chip
from jaxinfer.planning.drafts import DraftMemory
from jaxinfer.planning.replicas import Replicas
from jaxinfer.planning.shapes import PLAIN
from jaxinfer.planning.times import Timing

_DRAFTS = (
    "Times are those without drafts: a step with some takes a little longer, and gives a token and "
    "as many more as were guessed right."
)
_POOLS = (
    "An engine for pooling generates nothing: times are until the last of a batch's prompts is "
    "read, and tokens a second are those of prompts."
)


def notes(timing: Timing, dtype: str, drafts: DraftMemory, replicas: Replicas) -> tuple[str, ...]:
    """All remarks, a sentence or a few each.

    Args:
        timing: of one replica.
        dtype: of activations, and of weights that are not quantized.
        drafts: what they take.
        replicas: of the model.
    """
    parts = [_expected(timing), _of_the_model(timing), _of_the_device(timing.chip, dtype)]
    parts += [_of_stages(timing), _of_replicas(replicas), _of_drafts(drafts, timing.chip)]
    return tuple(note for part in parts for note in part)


def _expected(timing: Timing) -> list[str]:
    overheads, weights = timing.overheads, timing.shape.weights_kind
    if overheads is None:
        return [f"No expected times: {_unknown(timing)}."]
    runs = "recorded H200 runs" + ("" if weights == PLAIN else f" of {weights}")
    if overheads.worst is None:
        error = "too few to tell their error"
    else:
        error = f"with a largest error of {overheads.worst:.0%}"
    idle = "TTFT is that of prompts that find the engine idle"
    return [f"Expected times are fitted to {runs}, {error}; {idle}."]


def _unknown(timing: Timing) -> str:
    """The reason why there are no expected times."""
    shape = timing.shape
    if not shape.is_measured:
        return f"no run of a {shape.model_type} model was recorded"
    if timing.num_contexts > 1:
        return (
            "of context parallelism one long prompt and one long context were recorded, on two "
            "GPUs. Floors leave out what devices exchange"
        )
    if timing.kv_cache_dtype == "int8":
        return (
            "on a GPU an int8 KV cache is read by XLA's attention alone, which was not measured "
            "and is far from these floors"
        )
    if timing.kv_cache_dtype != "auto":
        return f"runs with an {timing.kv_cache_dtype} KV cache are too few to fit"
    if timing.num_stages > 1:
        return "of pipelines one run was recorded"
    if timing.num_devices > 1 and not timing.chip.linked:
        return "sums over GPUs without NVLink were never measured"
    kind = shape.weights_kind
    if not timing.chip.is_hopper and kind != PLAIN:
        return (
            f"kernels for {kind} are for H100 and H200; elsewhere XLA multiplies them, which was "
            "not measured and is far from these floors"
        )
    return f"no run of {kind}{' over several devices' * (timing.num_devices > 1)} was recorded"


def _of_the_model(timing: Timing) -> list[str]:
    shape, notes = timing.shape, []
    if timing.pools:
        notes.append(_POOLS)
    if shape.num_classes:
        notes.append(
            f"The classifying head lies on the host, in float32: {shape.num_classes} "
            f"class{'es' if shape.num_classes > 1 else ''}."
        )
    if shape.num_experts:
        notes.append("Experts are taken as equally likely; skewed routing reads fewer.")
    if timing.num_groups > 1:
        notes.append(
            f"Experts lie whole in {timing.num_groups} groups of devices; floors are those of the "
            "group of which most experts are chosen."
        )
    return notes


def _of_the_device(chip: Chip, dtype: str) -> list[str]:
    notes = []
    if not chip.measured:
        notes.append(
            f"{chip.name}: floors from its data sheet; nothing was measured on this device."
        )
    if dtype == "bfloat16" and not chip.has_bfloat16:
        notes.append(f"{chip.name} has no bfloat16: take float16.")
    return notes


def _of_stages(timing: Timing) -> list[str]:
    if timing.num_stages == 1:
        return []
    return [
        f"Each of {timing.num_stages} stages has a share of the sequences at a time: a token takes "
        f"as long as on the devices of one stage with 1/{timing.num_stages} of the sequences; that "
        "is TPOT."
    ]


def _of_replicas(replicas: Replicas) -> list[str]:
    if replicas.count == 1:
        return []
    notes = [
        f"Each of {replicas.count} replicas has weights and a cache of its own, and the memory is "
        "one's. Times leave out that one process launches the steps of all: W1 of the 0.6B shape "
        "took 4% longer than this with 2 replicas, and 12% with 4."
    ]
    if replicas.num_prefill:
        notes.append(
            f"Prompts are computed by {replicas.num_prefill} of them alone: sequences and TPOT are "
            "of the others, and TTFT leaves out copying blocks to host memory and back."
        )
    return notes


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _of_drafts(drafts: DraftMemory, chip: Chip) -> list[str]:
    notes = [_DRAFTS] if drafts.num_drafts else []
    if drafts.weight_bytes:
        once_ms = drafts.weight_bytes / chip.bytes_per_s * 1e3
        notes.append(
            f"The draft head is whole on every device; reading it takes at least {once_ms:.2g} ms, "
            f"{_times(drafts.num_passes)} in a step with {drafts.num_drafts} drafts of each "
            "sequence."
        )
    return notes
