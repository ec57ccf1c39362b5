"""A service on a toy device in one process: engine, socket, and a front end as it is used."""

import contextlib
import dataclasses
import tempfile
import time
from pathlib import Path

from jaxinfer import EngineConfig, ModelConfig, SamplingParams
from jaxinfer.server.service.description import EngineDescription
from jaxinfer.server.service.engine_link import EngineLink
from jaxinfer.server.service.engine_server import EngineServer
from jaxinfer.server.service.limits import ServiceLimits
from jaxinfer.server.service.messages import metrics_to_message
from jaxinfer.server.service.remote_llm import RemoteLLM
from jaxinfer.serving.driver.driver import Driver
from tests.serving.constraints.fake_constraint import FakeSource
from tests.serving.engine.test_engine import TOKENIZER, Setup
from tests.serving.replicas.test_group import Group
from tests.serving.small_llm import CONFIG

MODEL_CONFIG: ModelConfig = dataclasses.replace(CONFIG, vocab_size=TOKENIZER.vocab_size)
STEP_S = 0.001
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)


class ToyService:
    """An engine on a toy device that front ends can connect to.

    Args:
        limits: of the service.
        scheduling_policy: as in `EngineConfig`.
        num_replicas: engines behind one queue; with 1, no queue.
        constraints: of the one engine.
        options: of `Setup`.
    """

    def __init__(
        self, *, limits=None, scheduling_policy="fcfs", num_replicas=1, constraints=None, **options
    ):
        if num_replicas == 1:
            self.setups = [
                Setup(tokenizer=TOKENIZER, constraints=constraints or FakeSource(), **options)
            ]
            self.engine = self.setups[0].engine
        else:
            group = Group(num_replicas, tokenizer=TOKENIZER, **options)
            self.setups, self.engine = group.setups, group.engine
        self.setup = self.setups[0]
        for setup in self.setups:
            take_time(setup.runner)
        self.driver = Driver(self.engine, constraints=constraints)
        self.limits = limits or ServiceLimits()
        self.description = EngineDescription(
            config=EngineConfig(scheduling_policy=scheduling_policy),
            directory=Path("no directory"),
            max_model_len=self.setup.scheduler.max_model_len,
            max_logprobs=5,
            default_params=GREEDY,
            limits=self.limits,
        )
        engine = self.engine
        self.server = EngineServer(
            self.driver,
            num_slots=self.setup.scheduler.max_num_seqs,
            max_waiting=self.limits.max_waiting_requests,
            hello=self.description.to_message(),
            calls={
                "get_metrics": lambda: metrics_to_message(
                    engine.counts().metrics(num_compilations=0, compile_seconds=0.0)
                ),
                "reset_prefix_cache": engine.reset_prefix_cache,
            },
        )

    @contextlib.asynccontextmanager
    async def listening(self):
        """The socket's path; afterwards nothing is left in the engine."""
        with tempfile.TemporaryDirectory() as directory:
            path = f"{directory}/engine"
            async with self.server.listening(path):
                yield path
        self.driver.call(lambda: None)
        assert not self.driver.by_hand.has_unfinished
        self.driver.close()
        for setup in self.setups:
            setup.scheduler.check_invariants()
            pool = setup.scheduler.pool
            assert pool.num_free_blocks == pool.num_usable_blocks

    @contextlib.asynccontextmanager
    async def connected(self):
        """One front end."""
        async with self.listening() as path:
            llm = await connect(path)
            yield llm
            await llm.shutdown()


def take_time(runner):
    """A device takes its time, in which the front end's thread runs."""
    launch = runner.launch
    runner.launch = lambda schedule: time.sleep(STEP_S) or launch(schedule)


async def connect(path):
    """A front end of a toy service."""
    link = await EngineLink.open(path)
    return RemoteLLM(link, TOKENIZER, MODEL_CONFIG)


async def collect(llm, prompt, params=GREEDY, **options):
    """All outputs of a request."""
    return [output async for output in llm.generate(prompt, params, **options)]
