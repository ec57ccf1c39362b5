"""`jaxinfer generate`: text on stdout, statistics on stderr, one line for every mistake."""

import dataclasses
import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxinfer
from jaxinfer.cli.answers.json_lines import json_line
from jaxinfer.cli.prompts import LINE_SAMPLING_FIELDS, read_prompts
from jaxinfer.generate import main
from jaxinfer.sampling_params import SamplingParams
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


def _pipe(monkeypatch, data: bytes) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))


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
    _pipe(monkeypatch, b"from a pipe")
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
    assert record["statistics"]["total_s"] == 3.0


def test_a_file_of_prompts_is_one_batch_answered_in_order(engines, capsys, tmp_path):
    file = tmp_path / "prompts.txt"
    file.write_text("one\n\ntwo\n")
    assert main(["--prompts-file", str(file)]) == 0
    assert all(
        params.output_kind == 2 for _, params in engines[0].requests
    )  # nothing is made twice
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


def test_an_engine_for_pooling_is_refused_before_it_starts(engines, capsys):
    assert main(["-p", "abc", "--runner", "pooling"]) == 1
    assert "--runner pooling generates nothing" in capsys.readouterr().err
    assert not engines


def test_sampling_flags_change_only_what_they_name(engines):
    main(["-p", "abc", "--top-k", "5", "-m", "9"])
    params = engines[0].requests[0][1]
    assert (params.top_k, params.max_tokens) == (5, 9)
    assert params.temperature == 0.6  # the model's default


@pytest.fixture
def adapter(tmp_path):
    """A directory of PEFT with rank 8."""
    from tests.serving.adapters.small_adapters import matrices, save_peft, tree

    return save_peft(tmp_path / "adapter", tree(matrices(0, rank=8)), r=8)


def test_an_adapter_answers_all_prompts_by_an_engine_of_its_rank(engines, adapter, tmp_path):
    (tmp_path / "prompts").write_text("one\ntwo\n")
    for source in (["one"], ["--prompts-file", str(tmp_path / "prompts")]):
        assert main([*source, "--lora", adapter, "-q"]) == 0
    settings = {"enable_lora": True, "max_loras": 1, "max_lora_rank": 8}
    for engine, count in zip(engines, (1, 2), strict=True):
        assert engine.arguments.items() >= settings.items()
        assert [each.path for each in engine.adapters] == [adapter] * count


def test_an_adapter_that_is_none_is_one_line_before_an_engine_starts(engines, capsys):
    assert main(["one", "--lora", "/no/such/adapter"]) == 1
    assert "/no/such/adapter: no such directory; give the one" in capsys.readouterr().err
    assert not engines


def test_an_adapter_of_a_rank_above_the_largest_is_named(engines, tmp_path, capsys):
    from tests.serving.adapters.small_adapters import matrices, save_peft, tree

    directory = save_peft(tmp_path / "adapter", tree(matrices(0, rank=513)), r=513)
    assert main(["one", "--lora", directory]) == 1
    error = capsys.readouterr().err
    assert f"{directory}: an adapter of rank 513; --lora takes ranks up to 512; merge it" in error
    assert not engines


def test_what_the_engine_says_of_adapters_names_the_commands_flag(monkeypatch, capsys, adapter):
    def refuse(**arguments):
        raise ValueError("enable_lora adapts dense layers; leave it out")

    monkeypatch.setitem(vars(jaxinfer), "LLM", refuse)
    assert main(["one", "--lora", adapter]) == 1
    assert "error: --lora adapts dense layers; leave it out" in capsys.readouterr().err


def test_chat_sends_the_prompt_through_the_template(engines):
    main(["-p", "hi", "--chat", "--system", "be brief"])
    assert engines[0].requests[0][0] == "<system>be brief<user>hi"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no prompt: give -p"),
        (["-p", ""], "no prompt"),
        (["--prompts-file", "/no/such/file"], "/no/such/file"),
        (["-p", "abc", "--temp", "-1"], "--temp must"),
        (["-p", "abc", "--max-tokens", "0"], "--max-tokens must"),
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


NOT_UTF8 = "caf\udce9"  # how Python gives the bytes b"caf\xe9" of an argument


@pytest.mark.parametrize(
    "arguments", [["-p", NOT_UTF8], [NOT_UTF8], ["--chat", "-p", "x", "--system", NOT_UTF8]]
)
def test_an_argument_that_is_not_utf8_is_one_line(engines, capsys, arguments):
    with pytest.raises(SystemExit) as leaving:
        main(arguments)
    error = capsys.readouterr().err
    assert leaving.value.code == 2
    assert "not UTF-8 text" in error
    assert error.count("\n") == 1


def test_a_pipe_that_is_not_utf8_is_one_line(engines, capsys, monkeypatch):
    _pipe(monkeypatch, b"fine\ncaf\xe9")
    assert main(["-p", "-"]) == 1
    assert "standard input:2: not UTF-8 text (byte 0xe9)" in capsys.readouterr().err


def test_a_closed_standard_input_is_one_line(engines, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", None)
    assert main(["-p", "-"]) == 1
    assert "standard input is closed" in capsys.readouterr().err


def test_a_file_that_is_not_utf8_is_named_with_its_line(engines, capsys, tmp_path):
    file = tmp_path / "prompts.txt"
    file.write_bytes(b"fine\ncaf\xe9\n")
    assert main(["--prompts-file", str(file)]) == 1
    assert f"{file}:2: not UTF-8 text" in capsys.readouterr().err


def test_half_a_character_in_json_is_named_with_its_line(engines, capsys, tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_text('"fine"\n"\\ud800"\n')
    assert main(["--prompts-file", str(file)]) == 1
    assert f"{file}:2: not UTF-8 text" in capsys.readouterr().err


def test_prompts_are_lines_as_an_editor_counts_them(tmp_path):
    file = tmp_path / "prompts.txt"
    file.write_bytes("\ufeffone\u2028still one\r\n\r\ntwo\x85\x0cstill two\rand".encode())
    lines = read_prompts(None, str(file))
    assert [line.text for line in lines] == ["one\u2028still one", "two\x85\x0cstill two\rand"]
    assert [line.where for line in lines] == [f"{file}:1", f"{file}:3"]


# Line breaks of other programs, controls, marks and letters that not every encoding has.
AWKWARD = st.sampled_from('\u2028\u2029\x85\x0b\x0c\x1c\x1e\r\n\x1b\x7f\x9b\ufeff"\\é字😀')


@given(
    st.text(AWKWARD | st.characters(exclude_categories=["Cs"]), min_size=1),
    st.text(AWKWARD | st.characters()),
)
@pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "ascii"])
def test_what_json_writes_can_be_read_as_prompts(tmp_path_factory, encoding, prompt, text):
    file = tmp_path_factory.mktemp("answers") / "answers.jsonl"
    answer = {"prompt": prompt, "text": text, "token_ids": [1], "finish_reason": "stop"}
    file.write_bytes((json_line(answer, encoding) + "\n").encode(encoding))
    assert file.read_text(encoding).splitlines()[1:] == []
    assert [line.text for line in read_prompts(None, str(file))] == [prompt]


def test_answers_of_the_command_are_prompts_again(engines, capsys, tmp_path):
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    prompt = "a\u2028\x85\x0c\x7f\x1b\ufeffb"
    assert main(["-p", prompt, "--json", "-q"]) == 0
    first.write_text(capsys.readouterr().out)
    assert main(["--prompts-file", str(first), "--output", str(second), "-q"]) == 0
    assert json.loads(second.read_text())["prompt"] == prompt


def test_one_line_and_many_have_the_same_shape(engines, capsys, tmp_path):
    file = tmp_path / "prompts.txt"
    file.write_text("one\ntwo\n")
    main(["-p", "one", "--json", "-q"])
    main(["--prompts-file", str(file), "--json", "-q"])
    single, *many = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert single == many[0]
    assert single.keys() == many[1].keys()


def test_a_json_line_brings_its_sampling_and_gets_its_id_back(engines, capsys, tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "a", "id": "x-1", "max_tokens": 7, "stop": ["!"]}\n"b"\n')
    assert main(["--prompts-file", str(file), "--json", "-q", "-m", "9"]) == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [record.get("id", "none") for record in records] == ["x-1", "none"]
    by_prompt = dict(engines[0].requests)
    assert (by_prompt["a"].max_tokens, by_prompt["a"].stop) == (7, ("!",))
    assert (by_prompt["b"].max_tokens, by_prompt["b"].stop) == (9, ())


@pytest.mark.parametrize(
    ("fields", "cause"),
    [
        ('"maxtokens": 5', "unknown key 'maxtokens'; did you mean 'max_tokens'?"),
        ('"n": 2', "unknown key 'n'; a line may hold prompt, id, "),
        ('"entropy": true', "unknown key 'entropy'; a line may hold prompt, id, "),
        ('"max_tokens": "5"', "max_tokens must be an integer"),
        ('"temperature": 999', "temperature must be from 0 to 100"),
        ('"id": [1]', "id must be"),
    ],
)
def test_a_key_that_is_not_honoured_is_an_error(engines, capsys, tmp_path, fields, cause):
    file = tmp_path / "prompts.jsonl"
    file.write_text(f'"fine"\n{{"prompt": "a", {fields}}}\n')
    assert main(["--prompts-file", str(file)]) == 1
    assert f"{file}:2: {cause}" in capsys.readouterr().err
    assert engines == []


def test_a_file_that_is_not_there_is_named_with_what_to_give(engines, capsys):
    assert main(["--prompts-file", "no/such.txt"]) == 1
    said = "no/such.txt: No such file or directory; give a file of prompts, one a line\n"
    assert capsys.readouterr().err == f"jaxinfer generate: error: {said}"


def test_a_line_has_all_sampling_fields_but_what_its_answer_would_not_show():
    left_out = {field.name for field in dataclasses.fields(SamplingParams)} - LINE_SAMPLING_FIELDS
    assert left_out == {"n", "logprobs", "prompt_logprobs", "detokenize", "output_kind"} | {
        *("prompt_logprob_start", "entropy", "support", "logprob_token_ids")
    }


@pytest.mark.parametrize(
    "arguments",
    [
        ["-p", "x", "--prompts-file", "f"],
        ["x", "-p", "y"],
        ["x", "--system", "s"],
        ["x", "--no-thinking"],
        ["x", "--resume"],
        ["x", "--max-loras", "4"],
        ["x", "--url", "http://localhost:1", "--lora", "d"],
    ],
)
def test_flags_that_would_be_ignored_are_refused(engines, capsys, arguments):
    with pytest.raises(SystemExit) as leaving:
        main(arguments)
    assert leaving.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_an_unknown_flag_with_a_value_is_what_the_error_names(engines, capsys):
    with pytest.raises(SystemExit):
        main(["-p", "x", "--unknown", "value"])
    assert "error: unrecognized arguments: --unknown" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--max-tokns 3 hello", "--max-tokns; did you mean '--max-tokens'?"),
        ("hello --zzz=4 --tpo-k 3", "--zzz --tpo-k; did you mean '--top-k'?"),
        ("hello world", "world"),
    ],
)
def test_unknown_flags_alone_are_named_with_the_nearest(engines, capsys, line, said):
    with pytest.raises(SystemExit):
        main(line.split())
    assert f"error: unrecognized arguments: {said} (see" in capsys.readouterr().err


def test_a_prompt_may_begin_as_a_flag_of_vllm(engines):
    assert main(["-p", "--enforce-eager=1 is what?", "-q"]) == 0
    assert engines[0].requests[0][0] == "--enforce-eager=1 is what?"


def test_a_prompt_needs_no_flag(engines, capsys):
    assert main(["hello", "-q"]) == 0
    assert capsys.readouterr().out == "HELLO\n"


@pytest.mark.parametrize("data", [b"one\ntwo\n", b'{"prompt": "one"}\n{"prompt": "two"}\n'])
def test_prompts_can_come_from_a_pipe(engines, capsys, monkeypatch, data):
    _pipe(monkeypatch, data)
    assert main(["--prompts-file", "-", "-q"]) == 0
    assert capsys.readouterr().out == "=== one\nONE\n\n=== two\nTWO\n\n"


def test_a_prompt_that_the_engine_refuses_is_named_by_file_and_line(engines, capsys, tmp_path):
    file = tmp_path / "prompts.txt"
    file.write_text("one\n" + "x" * 1001)
    assert main(["--prompts-file", str(file), "-q"]) == 1
    output = capsys.readouterr()
    assert f"{file}:2: prompt has 1001 tokens" in output.err
    assert output.out == ""


def test_a_request_that_fails_is_named_by_line_and_the_others_are_answered(
    monkeypatch, capsys, tmp_path
):
    def reply(prompt):
        if prompt == "two":
            raise ArithmeticError("not finite")
        return [prompt.upper()]

    monkeypatch.setitem(vars(jaxinfer), "LLM", lambda **arguments: FakeLLM(reply))
    file = tmp_path / "prompts.txt"
    file.write_text("one\ntwo\nthree\n")
    assert main(["--prompts-file", str(file), "--json", "-q"]) == 1
    output = capsys.readouterr()
    assert output.err == f"jaxinfer generate: error: {file}:2: not finite\n"
    records = [json.loads(line) for line in output.out.splitlines()]
    assert [record["text"] for record in records] == ["ONE", "", "THREE"]
    assert [record.get("error") for record in records] == [None, "not finite", None]


def test_an_interrupted_file_of_answers_is_gone_on_with(monkeypatch, capsys, tmp_path):
    prompts, answers = tmp_path / "prompts.txt", tmp_path / "answers.jsonl"
    prompts.write_text("one\ntwo\nthree\n")

    def run(reply, *arguments):
        engine = FakeLLM(reply)
        engine.waiting = _FirstComeFirstServed()
        monkeypatch.setitem(vars(jaxinfer), "LLM", lambda **arguments: engine)
        line = ["--prompts-file", str(prompts), "--output", str(answers), "-q", *arguments]
        return main(line), engine

    def interrupted(prompt):
        if prompt == "two":
            assert "ONE" in answers.read_text(), "each answer is written when it ends"
            raise KeyboardInterrupt
        return [prompt.upper()]

    assert run(interrupted)[0] == 130
    assert [json.loads(line)["text"] for line in answers.read_text().splitlines()] == ["ONE"]
    with answers.open("a") as file:
        file.write('{"prompt": "tw' + "x" * 5000)  # as a killed process leaves it
    assert run(lambda prompt: [prompt.upper()])[0] == 1
    assert "--resume continues it" in capsys.readouterr().err
    status, engine = run(lambda prompt: [prompt.upper()], "--resume")
    assert status == 0
    assert [prompt for prompt, _ in engine.requests] == ["two", "three"]
    texts = [json.loads(line)["text"] for line in answers.read_text().splitlines()]
    assert texts == ["ONE", "TWO", "THREE"]
    prompts.write_text("one\nother\nthree\n")
    assert run(lambda prompt: [prompt], "--resume")[0] == 1
    assert f"{answers}:2: not an answer to {prompts}:2" in capsys.readouterr().err


@pytest.mark.parametrize("output", ["/dev/null", "/", "/no/such/directory/file"])
def test_a_file_of_answers_that_can_not_be_is_one_line(engines, capsys, output):
    assert main(["x", "--output", output]) == 1
    error = capsys.readouterr().err
    assert output in error
    assert error.count("\n") == 1
    assert engines == []


class _FirstComeFirstServed(list):
    def pop(self, index=0):
        return super().pop(index)


def test_an_answer_that_was_cut_says_so_and_how_to_get_more(engines, capsys):
    assert main(["-p", "abcdef", "-m", "4"]) == 0
    output = capsys.readouterr()
    assert output.out == "ABCD\n"
    assert "cut at --max-tokens 4" in output.err
    assert "ended by length" in output.err
    main(["-p", "abcdef"])
    assert "cut" not in capsys.readouterr().err


def test_compiling_is_shown_as_such_and_not_laid_to_speed(engines, capsys):
    main(["-p", "abc"])
    assert "compiling 1 program, 0.2 s" in capsys.readouterr().err


def test_a_terminal_gets_no_escape_sequences_and_a_pipe_gets_the_bytes(monkeypatch, capsys):
    attack = "a\x1b]0;owned\x07\x9b31m\x7fb\tc"
    monkeypatch.setitem(vars(jaxinfer), "LLM", lambda **_: FakeLLM(lambda prompt: [attack]))
    main(["-p", "x", "-q"])
    assert capsys.readouterr().out == f"{attack}\n"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    main(["-p", "x", "-q"])
    assert capsys.readouterr().out == "a\\x1b]0;owned\\x07\\x9b31m\\x7fb\tc\n"


def test_control_characters_in_json_are_escaped(monkeypatch, capsys):
    monkeypatch.setitem(vars(jaxinfer), "LLM", lambda **_: FakeLLM(lambda prompt: ["\x9b31mé"]))
    main(["-p", "x", "-q", "--json"])
    assert '"text": "\\u009b31mé"' in capsys.readouterr().out
