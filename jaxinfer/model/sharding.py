"""Sharding rules: the mesh axes over which parameters, KV pages and logits are split.

| array                                   | split dimension                    |
|-----------------------------------------|------------------------------------|
| embed_tokens, lm_head                   | vocabulary                         |
| q_proj (rows), o_proj (columns)         | query heads                        |
| k_proj, v_proj (rows)                   | key/value heads, or whole (below)  |
| gate_proj, up_proj (rows), down_proj (columns) | intermediate                |
| experts' matrices [X, ...]              | as those of an MLP; or X, or both (below) |
| router, norms, o_proj_bias                      | whole on every device              |
| KV pages [P, S, K, D]                   | key/value heads; or S, too (below) |
| logits [..., V]                         | vocabulary                         |

With fewer key/value heads than devices, k_proj and v_proj are whole on every device, each device
computes the one head its query heads read, and the pages hold that head once per device.

Expert parallelism (`split_experts`) gives each group of devices whole experts, whose width the
devices of the group share; what else is split lies as without, on all of them. With several devices
in a group, the mesh has an axis for groups before that of tensor parallelism, and all but experts
is split over the two of them.

Context parallelism (`with_contexts`) puts an axis before that of tensor parallelism, along which
pages of C x S tokens are split, and all else is whole.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, PartitionSpec

from jaxinfer.kernels.collectives.tensor_axis import MeshAxes
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.degrees import check_divisible as check_divisible

TENSOR_AXIS = "tensor"
DATA_AXIS = "data"
EXPERT_AXIS = "expert"
CONTEXT_AXIS = "context"
_SPLIT_BY_TENSOR = ("vocab", "heads", "kv_heads", "intermediate")


@dataclass(frozen=True)
class ShardingRules:
    """Mesh axis for each logical axis of the parameters; None keeps that axis whole.

    A mesh need not have the axis `data`: without it there is one replica.

    Attributes:
        vocab: rows of the embedding and the head.
        heads: query heads.
        kv_heads: key/value heads.
        intermediate: width of the MLP.
        embed: the hidden dimension; split only by trainers (fully sharded parameters).
        data: replicas of the model, each of which serves requests of its own.
        experts: experts, whole. Their width is split over the other axes of `intermediate`.
        context: the tokens of a KV block, in turn; parameters are whole along this axis.
    """

    vocab: MeshAxes | None = TENSOR_AXIS
    heads: MeshAxes | None = TENSOR_AXIS
    kv_heads: MeshAxes | None = TENSOR_AXIS
    intermediate: MeshAxes | None = TENSOR_AXIS
    embed: str | None = None
    data: str | None = DATA_AXIS
    experts: str | None = None
    context: str | None = None

    @property
    def expert_width(self) -> MeshAxes | None:
        """The axes over which the width of each expert is split."""
        rest = tuple(axis for axis in _names(self.intermediate) if axis != self.experts)
        return rest if len(rest) > 1 else rest[0] if rest else None


def make_mesh(num_devices: int, devices: Sequence[Any] | None = None) -> Mesh:
    """One-dimensional mesh over the axis ``tensor``.

    Args:
        num_devices: N, tensor-parallel degree.
        devices: `jax.Device`s to take the first N of, in equal shares of several processes; all
            that JAX sees if None.

    Raises:
        ValueError: there are fewer devices than asked for, or they don't make equal shares.
    """
    available = jax.devices() if devices is None else list(devices)
    by_process: dict[int, list[Any]] = {}
    for device in available:
        by_process.setdefault(device.process_index, []).append(device)
    if num_devices < 1:
        raise ValueError(f"tensor_parallel_size must be at least 1, got {num_devices}")
    if num_devices > len(available):
        number, kind = len(available), available[0].platform
        emulate = ""
        if kind == "cpu" and len(by_process) == 1:
            flag = f"--xla_force_host_platform_device_count={num_devices}"
            emulate = f", or emulate devices by XLA_FLAGS={flag}"
        raise ValueError(
            f"tensor_parallel_size {num_devices} needs as many devices, and only {number} {kind} "
            f"{'device is' if number == 1 else 'devices are'} available{_per_process(by_process)}; "
            f"lower it{emulate}"
        )
    share, rest = divmod(num_devices, len(by_process))
    if rest or any(len(local) < share for local in by_process.values()):
        raise ValueError(
            f"tensor_parallel_size {num_devices} must take the same number of devices from each "
            f"process, and there are {len(available)}{_per_process(by_process)}; give a multiple "
            f"of {len(by_process)}, or mesh="
        )
    chosen = np.asarray([d for local in by_process.values() for d in local[:share]], dtype=object)
    # Auto, not Explicit: shardings of intermediate values are the compiler's and shard_map's.
    return Mesh(chosen, (TENSOR_AXIS,), axis_types=(AxisType.Auto,))


def spans_processes(mesh: Mesh) -> bool:
    """Whether a mesh has devices of more than one process."""
    return len({device.process_index for device in mesh.devices.flat}) > 1


def _per_process(by_process: Mapping[int, Sequence[Any]]) -> str:
    if len(by_process) == 1:
        return ""
    counts = [f"{len(local)} in process {i}" for i, local in sorted(by_process.items())]
    return f" ({', '.join(counts)})"


def split_experts(mesh: Mesh, rules: ShardingRules, num_groups: int) -> tuple[Mesh, ShardingRules]:
    """The same devices with experts split whole over groups of them, and the rules that say so.

    Neighbours on the axis of heads form a group. The order of devices, and what each of them has of
    anything but experts, stay as they are.

    Args:
        mesh: with one axis for heads.
        rules: put heads on that axis, and experts on none.
        num_groups: G, a divisor of the axis's length; with 1 nothing changes.

    Raises:
        ValueError: the rules put heads on several axes, or on none.
    """
    if num_groups == 1:
        return mesh, rules
    if not isinstance(rules.heads, str):
        raise ValueError(
            f"expert parallelism splits the one mesh axis of heads, and the rules put heads on "
            f"{rules.heads!r}; give one axis, as ShardingRules(heads='tensor') does"
        )
    tensor, size = rules.heads, mesh.shape[rules.heads]
    if num_groups == size:
        return mesh, replace(rules, experts=tensor)
    at, names, shape = mesh.axis_names.index(tensor), list(mesh.axis_names), list(mesh.axis_sizes)
    names[at : at + 1] = [EXPERT_AXIS, tensor]
    shape[at : at + 1] = [num_groups, size // num_groups]
    split = Mesh(mesh.devices.reshape(shape), names, axis_types=(AxisType.Auto,) * len(names))
    on_both = [each for each in _SPLIT_BY_TENSOR if getattr(rules, each) == tensor]
    both = dict.fromkeys(on_both, (EXPERT_AXIS, tensor))
    return split, replace(rules, experts=EXPERT_AXIS, **both)


def with_contexts(
    mesh: Mesh, rules: ShardingRules, num_contexts: int
) -> tuple[Mesh, ShardingRules]:
    """The same devices with an axis of context parallelism outermost, and the rules that say so.

    Args:
        mesh: of the axis ``tensor`` alone, or of both.
        rules: put nothing on the new axis.
        num_contexts: C, a divisor of the axis's length; with 1 nothing changes.
    """
    if num_contexts == 1:
        return mesh, rules
    devices = mesh.devices.reshape(num_contexts, -1)
    split = Mesh(devices, (CONTEXT_AXIS, TENSOR_AXIS), axis_types=(AxisType.Auto,) * 2)
    return split, replace(rules, context=CONTEXT_AXIS)


def param_spec(
    axes: Sequence[str], config: ModelConfig, rules: ShardingRules, num_devices: int
) -> PartitionSpec:
    """Partition of one parameter from its logical axes."""
    whole = (
        {"head_dim"} if config.num_key_value_heads % num_devices == 0 else {"head_dim", "kv_heads"}
    )
    names = [None if axis in whole else getattr(rules, axis) for axis in axes]
    while names and names[-1] is None:
        names.pop()
    return PartitionSpec(*names)


def tensor_parallel_size(mesh: Mesh | AbstractMesh, rules: ShardingRules) -> int:
    """N: devices that key/value heads are split over; 1 where the rules keep them whole.

    Raises:
        ValueError: the rules name an axis that the mesh doesn't have.
    """
    for logical in (*_SPLIT_BY_TENSOR, "embed", "experts"):
        for axis in _names(getattr(rules, logical)):
            if axis not in mesh.shape:
                raise ValueError(
                    f"sharding rules put {logical} on mesh axis {axis!r}, but the mesh has "
                    f"{', '.join(map(repr, mesh.axis_names))}"
                )
    return math.prod(mesh.shape[axis] for axis in _names(rules.kv_heads))


def num_expert_groups(mesh: Mesh | AbstractMesh, rules: ShardingRules) -> int:
    """G: groups of devices over which experts are split whole; 1 where devices share them all."""
    return 1 if rules.experts is None else mesh.shape[rules.experts]


def num_page_heads(config: ModelConfig, num_devices: int) -> int:
    """Key/value heads that the pages hold over all devices: max(K, N)."""
    return max(config.num_key_value_heads, num_devices)


def kv_pages_spec(rules: ShardingRules) -> PartitionSpec:
    """Partition of key or value pages ``[P, S, max(K, N), D]``."""
    return PartitionSpec(None, rules.context, rules.kv_heads)


def logits_spec(rules: ShardingRules) -> PartitionSpec:
    """Partition of logits ``[B, V]``."""
    return PartitionSpec(None, rules.vocab)


def _names(axes: MeshAxes | None) -> tuple[str, ...]:
    """The axes of a mesh that are named."""
    return () if axes is None else (axes,) if isinstance(axes, str) else axes
