"""Who sums through mailboxes, and which addresses each device is told."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest

from jaxinfer.model.sharding import make_mesh
from jaxinfer.serving import mailboxes
from jaxinfer.serving.mailboxes import describe_peers, have_mailboxes


def _mesh(*processes):
    devices = np.array([SimpleNamespace(process_index=process) for process in processes])
    return SimpleNamespace(devices=devices)


def test_gpus_of_one_process_have_mailboxes():
    assert have_mailboxes(_mesh(0, 0), 2, "mosaic")
    assert have_mailboxes(_mesh(1, 1), 2, "mosaic")


@pytest.mark.parametrize(
    ("mesh", "num_devices", "backend"),
    [
        (_mesh(0, 0), 2, "xla"),  # no kernels at all
        (_mesh(0), 1, "mosaic"),  # nobody to sum with
        (_mesh(0, 1), 2, "mosaic"),  # addresses of another process mean nothing
        (_mesh(0, 0, 0, 0), 4, "mosaic"),  # not run yet
        (_mesh(0, 0, 0, 0), 2, "mosaic"),  # another axis: two GPUs of each rank
    ],
)
def test_others_do_not(mesh, num_devices, backend):
    assert not have_mailboxes(mesh, num_devices, backend)


@pytest.mark.parametrize("count", [2, 4])
def test_each_device_is_told_the_addresses_by_distance(count):
    described = describe_peers(make_mesh(count), "tensor")
    boxes = mailboxes.allocate(described)
    assert boxes.peers.sharding == described.sharding
    assert boxes.peers.shape == described.shape
    shards = sorted(boxes.memory.addressable_shards, key=lambda shard: shard.index[0].start)
    addresses = [shard.data.unsafe_buffer_pointer() for shard in shards]
    assert len(set(addresses)) == count
    table = np.asarray(boxes.peers).view(np.uint32).astype(np.uint64)
    for rank in range(count):
        for distance in range(count):
            low, high = table[rank, distance].tolist()
            assert low + (high << 32) == addresses[rank ^ distance]
    jax.block_until_ready(boxes)
