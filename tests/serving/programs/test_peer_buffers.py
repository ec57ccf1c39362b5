"""Who sums through peer buffers, and which addresses each device is told."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest

from jaxinfer.kernels.policy import Kernels
from jaxinfer.model.sharding import make_mesh
from jaxinfer.serving.programs import peer_buffers as peer_buffers
from jaxinfer.serving.programs.peer_buffers import (
    describe_peers,
    have_peer_buffers,
    reach_each_other,
)


def _mesh(*processes):
    devices = [
        SimpleNamespace(process_index=process, local_hardware_id=i)
        for i, process in enumerate(processes)
    ]
    return SimpleNamespace(devices=np.array(devices))


class _Cuda:
    """The driver of a machine whose GPUs reach each other but for some pairs."""

    def __init__(self, apart=(), status=0):
        self.apart, self.status = apart, status

    def cuDeviceCanAccessPeer(self, answer, device, peer):  # noqa: N802 (CUDA's name)
        answer._obj.value = (device, peer) not in self.apart
        return self.status


def test_gpus_of_one_process_have_peer_buffers():
    assert have_peer_buffers(_mesh(0, 0), 2, Kernels("mosaic"))
    assert have_peer_buffers(_mesh(1, 1), 2, Kernels("mosaic"))
    assert have_peer_buffers(_mesh(0, 0, 0, 0), 4, Kernels("mosaic"))


@pytest.mark.parametrize(
    ("mesh", "num_devices", "backend"),
    [
        (_mesh(0, 0), 2, "xla"),  # no kernels at all
        (_mesh(0), 1, "mosaic"),  # no other device to sum with
        (_mesh(0, 1), 2, "mosaic"),  # addresses of another process mean nothing
        (_mesh(*[0] * 8), 8, "mosaic"),  # more than the kernel takes
        (_mesh(0, 0, 0, 0), 2, "mosaic"),  # another axis: two GPUs of each rank
    ],
)
def test_others_do_not(mesh, num_devices, backend):
    assert not have_peer_buffers(mesh, num_devices, Kernels(backend))


@pytest.mark.parametrize(
    ("cuda", "reach"),
    [
        (_Cuda(), True),
        (_Cuda(apart=[(1, 0)]), False),  # one direction is not enough
        (_Cuda(status=101), False),  # the driver could not tell
    ],
)
def test_gpus_must_reach_each_other(monkeypatch, cuda, reach):
    monkeypatch.setattr("ctypes.CDLL", lambda name: cuda)
    assert reach_each_other(_mesh(0, 0)) is reach


def test_without_a_driver_nothing_is_reached(monkeypatch):
    def missing(name):
        raise OSError(name)

    monkeypatch.setattr("ctypes.CDLL", missing)
    assert not reach_each_other(_mesh(0, 0))


@pytest.mark.parametrize("count", [2, 4])
def test_each_device_is_told_the_addresses_by_distance(count):
    described = describe_peers(make_mesh(count), "tensor")
    boxes = peer_buffers.allocate(described)
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
