"""What the library says of its arguments reaches a user of commands in flags."""

import pytest

from jaxinfer.cli.flags.engine import ENGINE_FIELDS, add_engine_flags
from jaxinfer.cli.flags.names import in_flags
from jaxinfer.cli.flags.parser import CommandParser
from jaxinfer.cli.flags.sampling import SAMPLING_FIELDS, add_sampling_flags


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("max_model_len=9 is; set max_model_len", "--max-model-len=9 is; set --max-model-len"),
        ("temperature must be from 0 to 100", "--temp must be from 0 to 100"),
        ("lower max_num_seqs.", "lower --max-num-seqs."),
        ("strings that stop at a seed", "strings that stop at a seed"),
        ("/m/max_model_len/config.json: none", "/m/max_model_len/config.json: none"),
        ("'max_tokens': no such directory", "'max_tokens': no such directory"),
        ("max_loras needs enable_lora=True; add", "--max-loras needs --enable-lora; add"),
        ("write compile_ahead=False to", "write --no-compile-ahead to"),
        ("set enable_prefix_caching", "set --enable-prefix-caching"),
        ("give quantization='fp8' beside", "give --quantization='fp8' beside"),
        ("a model in quantization", "a model in quantization"),
        ("write coordinator_address", "write --coordinator-address"),
    ],
)
def test_arguments_become_flags_and_words_and_paths_stay(message, shown):
    assert in_flags(message) == shown


def test_a_command_with_other_flags_gives_their_names():
    flags = {"quantization": "--quantize"}
    assert in_flags("max_loras: give quantization=1", flags) == "max_loras: give --quantize=1"


def test_every_flag_that_a_message_can_name_exists():
    parser = CommandParser("generate", "")
    add_engine_flags(parser)
    add_sampling_flags(parser, max_tokens=1)
    parser.add_argument("--quiet")
    flags = {flag for action in parser._actions for flag in action.option_strings}
    for name in ENGINE_FIELDS | SAMPLING_FIELDS:
        assert in_flags(f"{name} is wrong").split()[0] in flags
