"""Chat templates render as in transformers, and a hostile one costs one error message."""

import pathlib
import threading

import pytest

from jaxinfer.model.text.chat_template import ChatTemplate
from jaxinfer.model.text.tokenizer import Tokenizer
from tests.model.text.small_tokenizer import CHAT_TEMPLATE, write_tokenizer

USER = {"role": "user", "content": "What is 1 < 2 & 'three'?"}
SYSTEM = {"role": "system", "content": "Be brief."}
ASSISTANT = {"role": "assistant", "content": "Yes. 你好 "}
THOUGHT = {"role": "assistant", "content": "Yes.", "reasoning_content": "\nhm\n"}
CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {"type": "function", "function": {"name": "add", "arguments": {"a": "<é>", "b": 2}}}
    ],
}
RESULT = {"role": "tool", "content": "3"}
TOOL = {"type": "function", "function": {"name": "add", "description": "adds & <b>", "é": 1}}


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return write_tokenizer(tmp_path_factory.mktemp("template"))


@pytest.fixture(scope="module")
def tokenizer(directory):
    tokenizer = Tokenizer.from_directory(directory)
    yield tokenizer
    tokenizer.close()


@pytest.fixture(scope="module")
def reference(directory):
    transformers = pytest.importorskip("transformers")
    return transformers.AutoTokenizer.from_pretrained(str(directory))


@pytest.mark.parametrize(
    ("messages", "options"),
    [
        ([USER], {"add_generation_prompt": True}),
        ([USER], {"add_generation_prompt": False}),
        ([SYSTEM, USER], {"add_generation_prompt": True, "enable_thinking": False}),
        ([SYSTEM, USER], {"add_generation_prompt": True, "enable_thinking": True}),
        ([SYSTEM, USER], {"add_generation_prompt": True, "tools": [TOOL, TOOL]}),
        ([USER, CALL, RESULT], {"add_generation_prompt": True, "tools": [TOOL]}),
        ([USER, THOUGHT, USER], {"add_generation_prompt": True}),
        ([USER, ASSISTANT], {"add_generation_prompt": False, "continue_final_message": True}),
        ([USER, THOUGHT], {"add_generation_prompt": False, "continue_final_message": True}),
    ],
)
def test_renders_what_transformers_renders(tokenizer, reference, messages, options):
    expected = reference.apply_chat_template(messages, tokenize=False, **options)
    assert tokenizer.apply_chat_template(messages, **options) == expected


def test_continuing_stops_exactly_after_the_final_message(tokenizer):
    # "im_end" also appears in the template's own text: the cut must not land there.
    messages = [USER, {"role": "assistant", "content": "im_end"}]
    text = tokenizer.apply_chat_template(
        messages, add_generation_prompt=False, continue_final_message=True
    )
    assert text.endswith("<|im_start|>assistant\nim_end")


def test_text_parts_are_joined(tokenizer):
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}, "three"]
    joined = tokenizer.apply_chat_template([{"role": "user", "content": "one\ntwo\nthree"}])
    assert tokenizer.apply_chat_template([{"role": "user", "content": parts}]) == joined


def test_reasoning_may_have_either_name(tokenizer):
    other = {"role": "assistant", "content": "Yes.", "reasoning": "\nhm\n"}
    assert tokenizer.apply_chat_template([USER, other]) == tokenizer.apply_chat_template(
        [USER, THOUGHT]
    )


def test_generation_tags_of_training_templates_render_their_body():
    template = ChatTemplate("{% generation %}{{ messages[0].role }}{% endgeneration %}", {}, "x")
    assert template.render([USER]) == "user"
    template.close()


def test_callers_messages_are_left_as_they_were(tokenizer):
    message = {"role": "assistant", "content": "Yes", "reasoning": "hm"}
    before = dict(message)
    tokenizer.apply_chat_template(
        [USER, message], add_generation_prompt=False, continue_final_message=True
    )
    assert message == before


@pytest.mark.parametrize(
    ("messages", "options", "kind", "text"),
    [
        ([], {}, ValueError, "messages is empty"),
        (["hi"], {}, TypeError, r"messages\[0\] must be a dict"),
        ([{"content": "hi"}], {}, TypeError, r"messages\[0\] needs a 'role'"),
        ([USER, {"role": "user", "content": 3}], {}, TypeError, r"messages\[1\]: 'content'"),
        (
            [{"role": "user", "content": [{"type": "image_url"}]}],
            {},
            ValueError,
            "part of type 'image_url' is not text",
        ),
        ([{"role": "user", "content": [3]}], {}, ValueError, "part of type 'int' is not text"),
        ([{"role": "user", "content": "x", "y": object()}], {}, TypeError, "plain JSON data"),
        (
            [USER, {"role": "User", "content": "x"}],
            {},
            ValueError,
            r"messages\[1\]: unknown role 'User'; roles are system, developer, user",
        ),
        ([{"role": "user"}], {}, ValueError, r"messages\[0\]: a user message needs 'content'"),
        ([{"role": "user", "content": None}], {}, ValueError, "a user message needs 'content'"),
        ([USER], {"continue_final_message": True}, ValueError, "exclude each other"),
        (
            [USER, {"role": "assistant"}],
            {"add_generation_prompt": False, "continue_final_message": True},
            ValueError,
            "no text to continue",
        ),
    ],
)
def test_bad_conversations_are_named(tokenizer, messages, options, kind, text):
    with pytest.raises(kind, match=text):
        tokenizer.apply_chat_template(messages, **options)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{% for i in range(10**9) %}{% endfor %}", "Range too big"),
        ("{{ 'x' * 10**12 }}", "memory"),
        ("{% for i in range(99999) %}{{ 'x' * 1000 }}{% endfor %}", "longer than"),
        ("{{ ''.__class__.__mro__ }}", "unsafe|not safe"),
        ("{{ messages.append(1) }}", "unsafe|not safe|not callable"),
        ("{% if %}", "chat template of x"),
        ("{{ missing.name }}", "undefined"),
        ("{{ 1 // 0 }}", "ZeroDivisionError"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "nested too deeply|recursion"),
        ("{% include 'other' %}", "no loader"),
    ],
)
def test_a_hostile_or_broken_template_is_one_error_line(source, text):
    template = ChatTemplate(source, {}, "x")
    with pytest.raises(ValueError, match=text) as caught:
        template.render([USER])
    assert "\n" not in str(caught.value)
    template.close()


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(9**5) %}{% for j in range(9**5) %}{% endfor %}{% endfor %}",
        # One C call: no check inside Python would see it run on.
        "{% if (9 + messages|length) ** (9**9) %}{% endif %}",
    ],
)
def test_a_template_that_runs_on_is_ended_and_the_next_one_works(monkeypatch, source):
    monkeypatch.setattr("jaxinfer.model.text.chat_template._CPU_SECONDS", 0.3)
    hostile = "{% if messages[0].content == 'loop' %}" + source + "{% endif %}ok"
    template = ChatTemplate(hostile, {}, "x")
    with pytest.raises(ValueError, match=r"more than 0\.3 s of CPU time"):
        template.render([{"role": "user", "content": "loop"}])
    assert template.render([USER]) == "ok"
    template.close()


def test_many_threads_may_render_at_once(tokenizer):
    results: dict[int, str] = {}

    def render(i: int) -> None:
        results[i] = tokenizer.apply_chat_template([{"role": "user", "content": f"number {i}"}])

    threads = [threading.Thread(target=render, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(f"number {i}<" in results[i] for i in range(8))


def test_the_helper_process_sees_no_environment_variables(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "secret")
    template = ChatTemplate(CHAT_TEMPLATE, {}, "x")
    template.render([USER])
    process = template._worker._process
    assert process is not None
    environment = pathlib.Path(f"/proc/{process.pid}/environ").read_text()
    assert "secret" not in environment
    template.close()
    assert process.poll() is not None
    template.close()


def test_a_templates_own_roles_are_known():
    source = (
        "{% for m in messages %}{% if m.role == 'ipython' or m['role'] in ['developer'] %}"
        "[{{ m['role'] }}]{% endif %}{{ m['content'] }}{% endfor %}"
    )
    template = ChatTemplate(source, {}, "x")
    try:
        own = [{"role": "developer", "content": "a"}, {"role": "ipython", "content": "b"}]
        assert template.render(own) == "[developer]a[ipython]b"
        for role in ("", "content", "]"):
            with pytest.raises(ValueError, match=r"messages\[0\]: unknown role"):
                template.render([{"role": role, "content": "a"}])
    finally:
        template.close()
