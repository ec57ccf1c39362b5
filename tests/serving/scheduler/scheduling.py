"""What the scheduler's tests share: small schedulers, small requests, single steps."""

from jaxinfer.sampling_params import SamplingParams
from jaxinfer.serving.scheduler.block_pool import BlockPool
from jaxinfer.serving.scheduler.scheduler import Scheduler
from tests.serving.requests.host_request import host_request
from tests.serving.runner.fake_device import FakeDevice, read, solo_run

NO_EOS = frozenset([-1])


def make_scheduler(num_blocks=100, block_size=8, caching=True, **kwargs):
    defaults = {"max_num_seqs": 8, "max_num_batched_tokens": 64, "max_model_len": 200}
    pool = BlockPool(num_blocks, block_size, caching)
    scheduler = Scheduler(pool, **(defaults | kwargs))
    return scheduler, FakeDevice(scheduler)


def make_request(request_id, length, max_tokens=4, first=1, **kwargs):
    prompt = [(first + i) % 20 for i in range(length)]
    return host_request(str(request_id), prompt, SamplingParams(max_tokens=max_tokens), **kwargs)


def add(scheduler, *requests):
    for request in requests:
        scheduler.add(request)
    return requests


def step(scheduler, device):
    """Schedule, run and read one step."""
    device.note_waiting()
    schedule = scheduler.schedule()
    assert schedule is not None
    read(device, schedule, device.launch(schedule))
    scheduler.check_invariants()
    return schedule


def shape(schedule):
    return [(row.request.request_id, row.start, row.num_fed) for row in schedule.rows]


def assert_solo(*requests, max_model_len=200):
    for request in requests:
        outputs, reason, stop_reason = solo_run(request, NO_EOS, max_model_len)
        assert request.output_token_ids == outputs
        assert (request.finish_reason, request.stop_reason) == (reason, stop_reason)
