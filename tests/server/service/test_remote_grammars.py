"""A front end's grammars are compiled in the engine's process, while others' answers go on."""

import asyncio
import json
import threading

import pytest

from jaxinfer import SamplingParams
from jaxinfer.errors import QueueFullError
from jaxinfer.server.service.description import changed_fields
from jaxinfer.server.service.limits import ServiceLimits
from jaxinfer.serving.constraints.grammar.compiler import GrammarCompiler
from jaxinfer.serving.constraints.request_constraints import RequestConstraints
from tests.server.service.test_remote_llm import run
from tests.server.service.toy_service import GREEDY, ToyService, collect
from tests.serving.engine.test_engine import TOKENIZER

END = TOKENIZER.token_to_id("<|im_end|>")


def guided(**given):
    return SamplingParams(temperature=0.0, max_tokens=20, structured_outputs=given)


def service(compiler=None, **options):
    constraints = RequestConstraints(TOKENIZER, TOKENIZER.vocab_size, [END], grammars=compiler)
    return ToyService(constraints=constraints, eos_token_ids=[END], **options)


class HeldUp(GrammarCompiler):
    """Compiles when it may."""

    def __init__(self):
        super().__init__(TOKENIZER, TOKENIZER.vocab_size, [END])
        self.may_go_on = threading.Event()

    def _compile(self, given):
        assert self.may_go_on.wait(20)
        return super()._compile(given)


def test_answers_follow_grammars_and_bad_ones_are_refused_alone():
    async def main():
        async with service().connected() as llm:
            choice = guided(choice=["yes", "no"]).clone(n=2)
            tasks = [collect(llm, [1, 2], GREEDY), collect(llm, [3], choice)]
            tasks += [collect(llm, [4], guided(regex="(").clone(n=2))]
            tasks += [collect(llm, [5], guided(json={"type": "boolean"}))]
            return await asyncio.gather(*tasks, return_exceptions=True)

    plain, chosen, error, boolean = run(main())
    assert len(plain[-1].outputs[0].token_ids) == 12
    assert {each.text for each in chosen[-1].outputs} <= {"yes", "no"}
    assert isinstance(error, ValueError)
    assert "structured_outputs.regex" in str(error)
    assert boolean[-1].outputs[0].text in ("true", "false")
    assert boolean[-1].outputs[0].finish_reason == "stop"


def test_others_go_on_while_a_grammar_is_compiled():
    compiler = HeldUp()

    async def main():
        async with service(compiler).connected() as llm:
            waiting = asyncio.create_task(collect(llm, [1], guided(regex="ab")))
            plain = await collect(llm, [1, 2], GREEDY)
            assert not waiting.done()
            compiler.may_go_on.set()
            return plain, await waiting

    plain, answered = run(main())
    assert plain[-1].outputs[0].finish_reason == "length"
    assert answered[-1].outputs[0].text == "ab"


def test_waiting_for_a_grammar_takes_a_place_in_the_queue():
    compiler = HeldUp()

    async def main():
        limits = ServiceLimits(max_waiting_requests=1)
        toy = service(compiler, limits=limits, max_num_seqs=1)
        async with toy.connected() as llm:
            held = [asyncio.create_task(collect(llm, [1], guided(regex="ab"))) for _ in range(2)]
            while toy.driver.num_compiling < 2:
                await asyncio.sleep(0.01)
            with pytest.raises(QueueFullError):
                await collect(llm, [1], GREEDY)
            compiler.may_go_on.set()
            return await asyncio.gather(*held)

    assert [outputs[-1].outputs[0].text for outputs in run(main())] == ["ab", "ab"]


def test_a_client_that_leaves_while_its_grammar_is_compiled_leaves_nothing():
    compiler, toys = HeldUp(), []

    async def main():
        toys.append(service(compiler))
        async with toys[0].connected() as llm:
            left = asyncio.create_task(collect(llm, [1], guided(regex="ab")))
            while not toys[0].driver.num_compiling:
                await asyncio.sleep(0.01)
            left.cancel()
            while toys[0].driver.num_compiling:
                await asyncio.sleep(0.01)
            compiler.may_go_on.set()
            return await collect(llm, [1], guided(regex="ab"))

    assert run(main())[-1].outputs[0].text == "ab"
    assert toys[0].setup.runner.num_launches <= 4


def test_grammars_travel_as_plain_values():
    params = guided(choice=["yes", "no"])
    assert json.loads(json.dumps(changed_fields(params)))["structured_outputs"] == {
        "choice": ["yes", "no"]
    }
