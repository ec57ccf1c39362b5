"""`jaxinfer chat`: a conversation that survives mistakes, Ctrl-C and the end of its input."""

import io
import os
import signal

import pytest

import jaxinfer
from jaxinfer.chat import main
from tests.cli.fake_llm import FakeLLM


@pytest.fixture
def talk(monkeypatch, capsys):
    """Type lines into a chat with `reply`; returns (engine, stdout, stderr, status)."""

    def run(*lines, reply=lambda prompt: ["fine", " thanks"], arguments=()):
        engine = FakeLLM(reply)

        def start(**given):
            engine.arguments = given
            return engine

        monkeypatch.setitem(vars(jaxinfer), "LLM", start)
        data = "".join(f"{line}\n" for line in lines).encode(errors="surrogateescape")
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
        status = main(list(arguments))
        output = capsys.readouterr()
        return engine, output.out, output.err, status

    return run


def test_an_answer_is_followed_by_a_line_of_statistics(talk):
    engine, out, err, status = talk("how are you?")
    assert status == 0
    assert out == "fine thanks\n"
    assert "generation 11 tokens" in err
    assert "tok/s" in err
    assert engine.closed


def test_the_model_sees_the_whole_conversation(talk):
    engine, *_ = talk("one", "two", arguments=["--system", "be kind"])
    assert [prompt for prompt, _ in engine.requests] == [
        "<system>be kind<user>one",
        "<system>be kind<user>one<assistant>fine thanks<user>two",
    ]


def test_an_adapter_answers_every_message(talk, tmp_path):
    from tests.serving.adapters.small_adapters import matrices, save_peft, tree

    adapter = save_peft(tmp_path, tree(matrices(0)))
    engine, *_ = talk("one", "two", arguments=["--lora", adapter])
    assert [each.path for each in engine.adapters] == [adapter] * 2
    assert engine.arguments["max_lora_rank"] == 4


def test_reset_forgets_the_turns_and_keeps_the_system_message(talk):
    engine, *_ = talk("one", "/reset", "two", arguments=["--system", "s"])
    assert engine.requests[1][0] == "<system>s<user>two"


def test_system_replaces_the_message_and_starts_anew(talk):
    engine, *_ = talk("one", "/system be brief", "two", "/system", "three")
    assert engine.requests[1][0] == "<system>be brief<user>two"
    assert engine.requests[2][0] == "<user>three"


def test_set_changes_the_sampling_of_the_next_answer(talk):
    engine, *_ = talk("/set temperature 0.1", "/set top-k 3", "hello", arguments=["-m", "40"])
    params = engine.requests[0][1]
    assert (params.temperature, params.top_k, params.max_tokens) == (0.1, 3, 40)


def test_set_alone_shows_the_settings(talk):
    _, _, err, _ = talk("/set thinking off", "/set")
    assert "max_tokens 500, thinking off" in err


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("/set colour red", "no setting 'colour'"),
        ("/set top_k many", "top_k must be a whole number"),
        ("/set temperature warm", "temperature must be a number"),
        ("/set thinking maybe", "thinking must be on, off or auto"),
        ("/dance", "no command /dance"),
    ],
)
def test_a_wrong_command_is_one_line_and_the_chat_goes_on(talk, line, message):
    engine, out, err, status = talk(line, "hello", arguments=["-q"])
    assert (status, out) == (0, "fine thanks\n")
    assert message in err
    assert err.count("\n") == 1
    assert len(engine.requests) == 1


def test_a_setting_out_of_range_is_refused_at_once_and_changes_nothing(talk):
    engine, _, err, _ = talk("/set temperature 0.5", "/set temperature 999", "hello")
    assert "temperature must be from 0 to 100, got 999" in err
    assert [params.temperature for _, params in engine.requests] == [0.5]


def test_help_lists_every_command(talk):
    _, _, err, _ = talk("/help")
    for command in ("/help", "/reset", "/system", "/set", "/exit", '"""', "Ctrl-C", "Ctrl-D"):
        assert command in err


@pytest.mark.parametrize("word", ["/exit", "/quit"])
def test_exit_leaves_before_the_rest_of_the_input(talk, word):
    engine, _, _, status = talk(word, "not sent")
    assert (status, engine.requests) == (0, [])


def test_three_quotes_hold_several_lines_together(talk):
    engine, *_ = talk('"""first', "/not a command", 'last"""', '"""one line"""')
    assert engine.requests[0][0] == "<user>first\n/not a command\nlast"
    assert engine.requests[1][0].endswith("<user>one line")


def test_empty_lines_are_not_sent(talk):
    engine, *_ = talk("", "   ", "hello")
    assert len(engine.requests) == 1


def test_ctrl_c_stops_the_answer_only(talk):
    def reply(prompt):
        if prompt.endswith("tell me everything"):
            return _Interrupting(["once", " upon", " a", " time"], after=2)
        return ["fine"]

    engine, out, _, status = talk("tell me everything", "hello", reply=reply)
    assert status == 0
    assert out == "once upon\nfine\n"
    assert engine.aborted == 1
    # What was said before the interruption stays in the conversation.
    assert engine.requests[1][0] == "<user>tell me everything<assistant>once upon<user>hello"


def test_ctrl_c_says_what_becomes_of_the_message(talk):
    interrupting = [_Interrupting(["once", " upon"], after=1), _Interrupting(["never"], after=0)]
    engine, out, err, _ = talk(
        "one", "two", "three", reply=lambda prompt: interrupting.pop(0) if interrupting else ["ok"]
    )
    assert out == "once\n\nok\n"
    assert "(stopped; what was said is kept" in err
    assert "(stopped before anything was said, so your message is forgotten" in err
    assert err.count("peak memory") == 2, "what was not answered has no statistics"
    assert engine.requests[2][0] == "<user>one<assistant>once<user>three"


@pytest.mark.parametrize("thinking_on", [False, True])
@pytest.mark.parametrize("after", range(1, 6))
def test_ctrl_c_never_shows_tags_repeats_text_or_keeps_thinking(talk, after, thinking_on):
    pieces = ["<th", "ink>a secret", " plan</th", "ink>ver", "y well", "."]
    if thinking_on:  # the template has opened the tag
        pieces[:2] = ["a secr", "et"]
    replies = [_Interrupting(pieces, after)]
    lines = ["/set thinking on"] if thinking_on else []
    engine, out, _, _ = talk(
        *lines, "one", "two", reply=lambda prompt: replies.pop() if replies else ["ok"]
    )
    shown, _, _ = out.partition("\n")
    assert "a secret planvery well.".startswith(shown)
    said = {4: "ver", 5: "very well"}.get(after)
    kept = f"<user>one<assistant>{said}<user>two" if said else "<user>two"
    assert engine.requests[1][0].removesuffix("<think>") == kept


def test_ctrl_c_between_two_pieces_on_the_screen_is_no_different(talk, monkeypatch):
    """The interrupt comes after a part was shown and before anything else was done with it."""
    shown = []

    def show_and_interrupt(text, *, dim=False):
        shown.append(text)
        if text == "well":
            raise KeyboardInterrupt

    monkeypatch.setattr("jaxinfer.cli.terminal.show", show_and_interrupt)
    replies = [["<think>a plan</think>well", " then"]]
    engine, *_ = talk("one", "two", reply=lambda prompt: replies.pop() if replies else ["ok"])
    assert shown == ["a plan", "well", "ok"]
    assert engine.requests[1][0] == "<user>one<assistant>well<user>two"


def test_a_line_that_is_not_utf8_is_refused_and_the_chat_goes_on(talk):
    engine, out, err, status = talk("caf\udce9", "/system caf\udce9", "hello", arguments=["-q"])
    assert (status, out) == (0, "fine thanks\n")
    assert err.count("not UTF-8 text") == 2
    assert [prompt for prompt, _ in engine.requests] == ["<user>hello"]


def test_an_answer_that_was_cut_says_so(talk):
    _, out, err, _ = talk("hello", arguments=["-m", "5"])
    assert out == "fine \n"
    assert "cut at /set max_tokens 5" in err
    assert "still thinking" not in err


def test_a_cut_while_thinking_says_that_there_was_no_answer_yet(talk):
    _, _, err, _ = talk("hello", reply=lambda _: ["<think>hm, well"], arguments=["-m", "10"])
    assert "still thinking" in err


def test_each_chat_starts_differently_unless_a_seed_is_given(talk):
    seeds = {talk("hello")[0].arguments["seed"] for _ in range(3)}
    assert len(seeds) == 3
    assert talk("hello", arguments=["--seed", "7"])[0].arguments["seed"] == 7


def test_a_closed_standard_input_is_one_line(monkeypatch, capsys):
    monkeypatch.setitem(vars(jaxinfer), "LLM", lambda **_: FakeLLM(lambda prompt: ["fine"]))
    monkeypatch.setattr("sys.stdin", None)
    assert main([]) == 1
    error = capsys.readouterr().err
    assert "standard input is closed" in error
    assert error.count("\n") == 1


class _Interrupting(list):
    """A list that sends SIGINT to this process once `after` items have been taken."""

    def __init__(self, items, after):
        super().__init__(items)
        self.after = after

    def __iter__(self):
        for i, item in enumerate(super().__iter__()):
            if i == self.after:
                os.kill(os.getpid(), signal.SIGINT)
            yield item


def test_ctrl_c_at_the_prompt_is_answered_with_how_to_leave(talk, monkeypatch):
    typed = iter([KeyboardInterrupt, "hello", EOFError])

    def type_line(prompt=""):
        item = next(typed)
        if isinstance(item, str):
            return item
        raise item

    monkeypatch.setattr("builtins.input", type_line)
    _, out, err, status = talk()
    assert (status, out) == (0, "fine thanks\n")
    assert "Ctrl-D or /exit leaves" in err


def test_thinking_is_dimmed_and_not_kept(talk, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    pieces = ["<thi", "nk>hmm", "</think>", "yes"]
    engine, out, _, _ = talk("sure?", "really?", reply=lambda prompt: pieces)
    assert out.startswith("\x1b[2mhmm\x1b[0myes\n")
    assert engine.requests[1][0] == "<user>sure?<assistant>yes<user>really?"


def test_thinking_that_the_template_opens_is_recognised(talk):
    engine, *_ = talk(
        "/set thinking on", "sure?", "so?", reply=lambda prompt: ["hmm</think>", "yes"]
    )
    assert "<assistant>yes<user>so?" in engine.requests[1][0]


def test_control_characters_never_reach_the_terminal(talk, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    _, out, _, _ = talk("hello", reply=lambda prompt: ["a\x1b]0;owned\x07b"], arguments=["-q"])
    assert out == "a\\x1b]0;owned\\x07b\n"
