"""Which slots of which devices hold which experts, so that devices have equal loads.

Pure functions of NumPy arrays. Letters: L layers with experts, X experts of a layer, R redundant
ones, G groups of devices that have whole experts, P = X + R slots: group g has the slots from
g P / G on. Replicas of an expert share its tokens evenly.
"""

import numpy as np

_SWAPS_A_SLOT = 4


def in_order(num_experts: int, num_groups: int, num_redundant: int) -> np.ndarray:
    """Logical expert of each slot, int32 `[P]`, where nothing is known of their loads.

    Each group has the experts that it would have without redundant ones, and repeats of its own
    first ones.

    Raises:
        ValueError: as `balance`.
    """
    _check_sizes(num_experts, num_groups, num_redundant)
    own = np.arange(num_experts, dtype=np.int32).reshape(num_groups, -1)
    wanted = own.shape[1] + num_redundant // num_groups
    return np.concatenate([np.resize(each, wanted) for each in own])


def balance(load: np.ndarray, num_groups: int, num_redundant: int) -> np.ndarray:
    """Logical expert of each slot, int32 `[L, P]`, for loads as they were.

    The hottest experts, by load a replica, get another replica each; the largest replica left goes
    to the group with the least load that has a free slot; then slots of the fullest group are
    swapped for others while that helps. The same loads give the same slots. Where all of this is
    no better than `in_order`, that is the answer.

    Args:
        load: tokens of each expert, `[L, X]`, none negative.
        num_groups: G, a divisor of X.
        num_redundant: R, a multiple of G.

    Raises:
        ValueError: a size doesn't divide, or loads are negative or not finite.
    """
    load = np.asarray(load, np.float64)
    if load.ndim != 2:
        raise ValueError(f"loads must be [layers, experts], got {list(load.shape)}")
    wrong = np.argwhere(~(np.isfinite(load) & (load >= 0)))
    if len(wrong):
        layer, expert = wrong[0]
        raise ValueError(
            f"load must hold numbers from 0 up; of the layers with experts, layer {layer} has "
            f"{load[layer, expert]} for expert {expert}"
        )
    plain = in_order(load.shape[1], num_groups, num_redundant)
    found = [_balance_layer(layer, num_groups, num_redundant) for layer in load]
    for i, layer in enumerate(load):
        least, most = (group_loads(layer, each, num_groups).max() for each in (found[i], plain))
        if least >= most:
            found[i] = plain
    return np.stack(found) if found else np.zeros((0, len(plain)), np.int32)


def group_loads(load: np.ndarray, slots: np.ndarray, num_groups: int) -> np.ndarray:
    """Tokens of each group, float `[G]`, of a layer's loads `[X]` and slots `[P]`."""
    counts = np.bincount(slots, minlength=len(load))
    return (np.asarray(load, np.float64) / counts)[slots].reshape(num_groups, -1).sum(1)


def imbalance(load: np.ndarray, slots: np.ndarray, num_groups: int) -> float:
    """Tokens of the fullest groups over those of the mean, layers added up; 1.0 without tokens."""
    groups = np.stack([group_loads(*each, num_groups) for each in zip(load, slots, strict=True)])
    mean = groups.mean(1).sum()
    return float(groups.max(1).sum() / mean) if mean else 1.0


def replica_table(slots: np.ndarray, num_experts: int, most: int) -> np.ndarray:
    """The slots of each expert, int32 `[X, 1 + most]`: how many, and then which; zeros beyond.

    Args:
        slots: of one layer, `[P]`.
        num_experts: X.
        most: replicas that an expert may have.
    """
    table = np.zeros((num_experts, 1 + most), np.int32)
    for slot, expert in enumerate(slots):
        table[expert, 0] += 1
        table[expert, table[expert, 0]] = slot
    return table


def _check_sizes(num_experts: int, num_groups: int, num_redundant: int) -> None:
    if num_experts % num_groups or num_redundant % num_groups:
        raise ValueError(
            f"{num_groups} groups of devices need a multiple of as many experts and redundant "
            f"experts, got {num_experts} and {num_redundant}"
        )


def _balance_layer(load: np.ndarray, num_groups: int, num_redundant: int) -> np.ndarray:
    replicas = np.ones(len(load), np.int64)
    for _ in range(num_redundant):
        # A second replica in a group would take no load from it.
        each = np.where(replicas < num_groups, load / replicas, -1.0)
        replicas[each.argmax()] += 1
    experts = np.repeat(np.arange(len(load), dtype=np.int32), replicas)
    each = (load / replicas)[experts]
    size = len(experts) // num_groups
    groups: list[list[int]] = [[] for _ in range(num_groups)]
    sums = np.zeros(num_groups)
    for i in np.argsort(-each, kind="stable"):
        free = [g for g in range(num_groups) if len(groups[g]) < size]
        apart = [g for g in free if experts[i] not in experts[groups[g]]]
        g = min(apart or free, key=lambda g: (sums[g], g))
        groups[g].append(int(i))
        sums[g] += each[i]
    at = np.array(groups)
    _swap(at, each)
    return experts[at].reshape(-1)


def _swap(at: np.ndarray, each: np.ndarray) -> None:
    """Swap places `[G, P / G]` of the fullest group and another while the fuller of both sinks."""
    for _ in range(_SWAPS_A_SLOT * at.size):
        loads = each[at]
        sums = loads.sum(1)
        full = int(sums.argmax())
        # What the full group gives: its places by those of all groups, [P / G, G, P / G].
        given = loads[full][:, None, None] - loads[None]
        fuller = np.maximum(sums[full] - given, sums[None, :, None] + given)
        fuller[:, full] = np.inf
        place = np.unravel_index(int(fuller.argmin()), fuller.shape)
        if fuller[place] >= sums[full] * (1 - 1e-9):
            return
        mine, group, theirs = place
        at[full, mine], at[group, theirs] = at[group, theirs], at[full, mine]
