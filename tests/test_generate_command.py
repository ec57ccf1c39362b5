"""`jaxinfer generate`: text on stdout, statistics on stderr, one line for every mistake."""

import io
import json

import pytest

import jaxinfer
from jaxinfer.generate import main
from tests.cli.fake_llm import FakeLLM


@pytest.fixture
def engines(monkeypatch):
    """Every engine that the command starts, answering with the prompt in capitals."""
    started: list[FakeLLM] = []

    def start(**arguments):
        started.append(FakeLLM(lambda prompt: [*prompt.upper()], **arguments))
        return started[-1]

    monkeypatch.setitem(vars(jaxinfer), "LLM", start)
    return started


def test_text_goes_to_stdout_and_statistics_to_stderr(engines, capsys):
    assert main(["-p", "abc"]) == 0
    output = capsys.readouterr()
    assert output.out == "ABC\n"
    for figure in ("prompt 3 tokens", "generation 3 tokens", "first token", "peak memory"):
        assert figure in output.err
    assert engines[0].closed


def test_quiet_prints_the_text_alone(engines, capsys):
    assert main(["-p", "abc", "--quiet"]) == 0
    output = capsys.readouterr()
    assert (output.out, output.err) == ("ABC\n", "")
    assert engines[0].arguments["show_progress"] is False


def test_a_dash_reads_standard_input(engines, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("from a pipe"))
    assert main(["-p", "-", "-q"]) == 0
    assert capsys.readouterr().out == "FROM A PIPE\n"


def test_json_holds_text_tokens_and_statistics(engines, capsys):
    assert main(["-p", "abc", "--json", "-q"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["text"] == "ABC"
    assert record["token_ids"] == [65, 66, 67]
    assert record["finish_reason"] == "stop"
    assert record["statistics"]["prompt_tokens"] == 3
    assert record["statistics"]["generation_tokens"] == 3
    assert record["statistics"]["num_compilations"] == 1


def test_a_file_of_prompts_is_one_batch_answered_in_order(engines, capsys, tmp_path):
    file = tmp_path / "prompts.txt"
    file.write_text("one\n\ntwo\n")
    assert main(["--prompts-file", str(file)]) == 0
    output = capsys.readouterr()
    assert output.out == "=== one\nONE\n\n=== two\nTWO\n\n"
    assert "2 prompts, 6 tokens" in output.err
    assert engines[0].arguments["max_num_seqs"] == 2


def test_a_file_of_json_lines_may_hold_prompts_of_several_lines(engines, capsys, tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_text('"a\\nb"\n{"prompt": "c"}\n')
    assert main(["--prompts-file", str(file), "--json", "-q"]) == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [record["prompt"] for record in records] == ["a\nb", "c"]
    assert [record["text"] for record in records] == ["A\nB", "C"]


def test_one_prompt_starts_a_small_engine_that_compiles_as_it_goes(engines):
    main(["-p", "abc"])
    assert engines[0].arguments["compile_ahead"] is False
    assert engines[0].arguments["max_num_seqs"] == 1


def test_engine_flags_win_over_the_commands_own_choices(engines):
    main(["-p", "abc", "--compile-ahead", "--max-num-seqs", "7", "--block-size", "32"])
    assert engines[0].arguments["compile_ahead"] is True
    assert engines[0].arguments["max_num_seqs"] == 7
    assert engines[0].arguments["block_size"] == 32


def test_sampling_flags_change_only_what_they_name(engines):
    main(["-p", "abc", "--top-k", "5", "-m", "9"])
    params = engines[0].requests[0][1]
    assert (params.top_k, params.max_tokens) == (5, 9)
    assert params.temperature == 0.6  # the model's default


def test_chat_sends_the_prompt_through_the_template(engines):
    main(["-p", "hi", "--chat", "--system", "be brief"])
    assert engines[0].requests[0][0] == "<system>be brief<user>hi"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no prompt: give -p"),
        (["-p", ""], "no prompt"),
        (["--prompts-file", "/no/such/file"], "/no/such/file"),
        (["-p", "abc", "--temp", "-1"], "temperature"),
        (["-p", "abc", "--max-tokens", "0"], "max_tokens"),
    ],
)
def test_a_mistake_is_one_line_and_status_1(engines, capsys, arguments, message):
    assert main([*arguments, "-q"]) == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert message in output.err
    assert output.err.count("\n") == 1


@pytest.mark.parametrize(
    ("line", "cause"), [("{", "not JSON"), ("3", "expected a string"), ('""', "expected a string")]
)
def test_a_damaged_json_line_is_named_by_file_and_line(engines, capsys, tmp_path, line, cause):
    file = tmp_path / "prompts.jsonl"
    file.write_text(f'"good"\n{line}\n')
    assert main(["--prompts-file", str(file)]) == 1
    assert f"{file}:2: {cause}" in capsys.readouterr().err


def test_ctrl_c_in_the_middle_of_the_text_is_status_130(monkeypatch, capsys):
    def interrupted(prompt):
        raise KeyboardInterrupt

    engine = FakeLLM(interrupted)
    monkeypatch.setitem(vars(jaxinfer), "LLM", lambda **arguments: engine)
    assert main(["-p", "abc"]) == 130
    assert "Traceback" not in capsys.readouterr().err
    assert engine.closed
