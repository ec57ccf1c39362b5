"""Two processes with emulated devices do what one process on one device does, and end together."""

import json
import signal

import pytest

from jaxinfer.model.checkpoint import orbax_files as checkpoint
from jaxinfer.model.checkpoint.weights import save_params
from jaxinfer.model.config import ModelConfig
from tests.model import tiny
from tests.model.text.small_tokenizer import write_tokenizer
from tests.serving.processes import conversation
from tests.serving.processes.processes import outputs, two_processes

# Each process imports JAX and compiles.
pytestmark = pytest.mark.slow

CONFIG = ModelConfig(
    vocab_size=512,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=8,
    num_key_value_heads=2,
    head_dim=16,
    max_position_embeddings=256,
)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A directory with weights whose logits differ by enough, and a tokenizer."""
    directory = tmp_path_factory.mktemp("model")
    params = tiny.params(CONFIG)
    save_params(params, CONFIG, directory)
    checkpoint.save(params, directory / "as_orbax")
    write_tokenizer(directory)
    return directory


@pytest.fixture(scope="module")
def alone(model):
    """What one process on one device answers."""
    return conversation.converse(str(model), tensor_parallel_size=1)


@pytest.fixture(scope="module")
def together(model):
    """What two processes of four devices each answer; both must end well."""
    line = ["-m", "tests.serving.processes.conversation", str(model)]
    with two_processes([line, line], devices=4) as processes:
        ended = outputs(processes)
    assert [status for status, _, _ in ended] == [0, 0], ended
    return [json.loads(stdout.splitlines()[-1]) for _, stdout, _ in ended]


@pytest.mark.parametrize(
    "call",
    [
        *(
            "greedy",
            "sampled",
            "seeded",
            "measured",
            "crowded",
            "stepped",
            "after all that",
            "cached",
        ),
        "other weights",
    ],
)
def test_tokens_are_those_of_one_device(call, alone, together):
    assert together[0][call] == alone[call]


def test_requests_were_swapped_to_host_memory_meanwhile(together):
    assert together[0]["preemptions"] > 0


def test_an_abort_between_steps_leaves_the_others_running(together):
    assert together[0]["aborted early"]


def test_a_reset_empties_the_prefix_cache_of_every_process(together):
    # A process that kept its cache would run steps of other shapes, which end in an error.
    assert [cached for cached, _ in together[0]["cached"]] == [0, 16, 0]


def test_a_bad_request_is_refused_by_process_0_alone(together):
    assert "1000000 at position 0 is outside" in together[0]["bad request"]


def test_ctrl_c_ends_the_call_and_not_the_engine(together):
    assert together[0]["interrupted"]


def test_each_process_reads_only_what_its_devices_need(alone, together):
    head = CONFIG.head_dim * CONFIG.hidden_size
    # Norms, and k and v of which two heads serve eight devices, are whole on each.
    whole = CONFIG.num_hidden_layers * (
        2 * CONFIG.hidden_size + 2 * CONFIG.head_dim + 2 * CONFIG.num_key_value_heads * head
    )
    whole = 4 * (whole + CONFIG.hidden_size)
    expected = whole + (alone["bytes read"] - whole) // 2
    assert [found["bytes read"] for found in together] == [expected, expected]


def test_orbax_restores_each_process_its_part(alone, together):
    assert [found["orbax is the same"] for found in (alone, *together)] == [True] * 3


def test_a_process_that_follows_takes_no_requests(together):
    assert "process 0 takes the requests" in together[1]["refused here"]


def test_processes_that_differ_in_a_mapping_say_so_and_keep_their_weights(alone, together):
    assert alone["other mappings"] == "nothing"
    for found in together:
        error = "processes differ in whether new weights are mapped: process 0 has False"
        assert f"DistributedError: {error}, process 1 has True; " in found["other mappings"]
        assert found["weights live"]


@pytest.mark.parametrize(
    ("mistake", "error"),
    [
        ("too many devices", "only 8 cpu devices are available (4 in process 0, 4 in process 1)"),
        ("unequal shares", "tensor_parallel_size 1 must take the same number of devices"),
        ("no such axis", "mesh axis 'tensor', but the mesh has 'x'"),
        ("indivisible", "6 does not divide num_attention_heads (8)"),
        ("other sizes", "differ in max_num_seqs: process 0 has 4, process 1 has 5"),
        ("other mappings", 'differ in the mapping of model.norm: process 0 has "ParamSource('),
        ("one alone", "missing: no such directory"),
    ],
)
def test_every_process_says_why_there_is_no_engine(mistake, error, together):
    for found in together:
        assert error in found["refusals"][mistake]


@pytest.mark.parametrize(
    ("number", "to", "statuses", "said"),
    [
        (signal.SIGKILL, 1, (1, -9), ("the device failed (", "")),
        pytest.param(
            *(signal.SIGINT, 0, (130, 0), ("", "")),
            marks=pytest.mark.exhaustive,
        ),
        pytest.param(
            *(signal.SIGINT, 1, (1, 130), ("process 1: interrupted (Ctrl-C)", "")),
            marks=pytest.mark.exhaustive,
        ),
    ],
)
def test_when_one_process_ends_the_other_ends_and_says_why(number, to, statuses, said, model):
    line = ["-m", "jaxinfer.generate", "--model", str(model), "--tensor-parallel-size", "2"]
    line += ["--max-model-len", "256", "--num-kv-blocks", "17", "--ignore-eos"]
    line += ["--num-decode-steps", "1"]  # fewer programs
    first = [*line, "--quiet", "-p", "Once upon a time", "--max-tokens", "200"]
    with two_processes([first, line]) as processes:
        assert processes[0].stdout is not None
        assert processes[0].stdout.read(1)  # in the middle of the answer
        processes[to].send_signal(number)
        ended = outputs(processes)
    assert tuple(status for status, _, _ in ended) == statuses, ended
    start_line = "Process 1 follows process 0. Devices: 2 x CPU of 2 processes, 1 of this one\n"
    for (_, _, stderr), expected, before in zip(ended, said, ("", start_line), strict=True):
        assert stderr.startswith(before)
        rest = stderr.removeprefix(before)
        assert expected in rest
        assert rest.count("\n") == bool(expected), rest
    assert ended[1][1] == ""


_NEVER_CLOSED = """
import sys
from jaxinfer import LLM
from tests.serving.processes.conversation import GREEDY, OPTIONS
llm = LLM(sys.argv[1], tensor_parallel_size=2, **OPTIONS)
if llm.follows:
    llm.follow()
    print("followed to the end")
else:
    print(len(llm.generate([[1, 2, 3]], GREEDY, use_tqdm=False)))
"""


def test_the_others_end_in_good_order_when_the_first_program_never_closes_its_engine(model):
    line = ["-c", _NEVER_CLOSED, str(model)]
    with two_processes([line, line]) as processes:
        ended = outputs(processes)
    assert [status for status, _, _ in ended] == [0, 0], ended
    assert [stdout.splitlines()[-1] for _, stdout, _ in ended] == ["1", "followed to the end"]
    assert not any("Traceback" in stderr for _, _, stderr in ended)
