"""A --config file is flags; whatever else it holds is one line that names the file."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxinfer import serve
from jaxinfer.cli.flags.config_file import with_config_file

PARSER = serve.build_parser()


def end_of(file, capsys):
    """What a command with this file says before it ends."""
    try:
        status = serve.main(["--config", str(file)])
    except SystemExit as leaving:
        status = leaving.code
    assert status in (1, 2)
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("qxz: 1\n", "no flag --qxz; `jaxinfer serve --help` lists them"),
        ("max-num-seq: 1\n", "no flag --max-num-seq; did you mean '--max-num-seqs'?"),
        ("port:\n", "--port has no value"),
        ("[1, 2]\n", "expected `flag: value` lines"),
        ("", "expected `flag: value` lines"),
        ("a: [\n", "not YAML"),
        ("a: " + "[" * 5000, "not YAML"),
        ("a: " + "{a: " * 5000, "not YAML"),
        ("port: " + "9" * 5000, "not YAML"),
        ("hf-overrides: &a {a: *a}", "aliases are not taken"),
        ("trust-remote-code: true\n", "--trust-remote-code does not apply"),
        ("port: 70000\n", "expected a port"),
        ("config: other.yaml\n", "a file names no other one"),
        ("api-key: [[a], b]\n", "--api-key takes texts or numbers, not ['a']"),
        ("api-key: {a: b}\n", "--api-key takes texts or numbers, not {'a': 'b'}"),
        ("api-key: [null]\n", "--api-key takes texts or numbers, not None"),
        ("port: !!set {a}\n", "--port takes texts or numbers"),
        ("port: !!binary aGk=\n", "--port takes texts or numbers"),
        ("hf-overrides: {a: !!binary aGk=}\n", "--hf-overrides is no JSON"),
        ("port: !!float ''\n", "not YAML"),
        ("port: !!python/object:os.system x\n", "not YAML"),
    ],
)
def test_a_mistake_is_one_line(tmp_path, capsys, content, message):
    file = tmp_path / "service.yaml"
    file.write_text(content)
    error = end_of(file, capsys)
    assert error.count("\n") == 1
    assert message in error


@pytest.mark.parametrize(
    "data", [b"\xff\xfea", b"model: \xe9", b"\x89PNG\r\n\x1a\n", b"\0\0", b"a: b\n" * 300_000]
)
def test_what_is_no_text_is_one_line(tmp_path, capsys, data):
    file = tmp_path / "service.yaml"
    file.write_bytes(data)
    error = end_of(file, capsys)
    assert error.count("\n") == 1
    assert f"{file}: not YAML: " in error


def test_a_file_without_end_is_one_line(capsys):
    error = end_of("/dev/zero", capsys)
    assert error.count("\n") == 1
    assert "/dev/zero: not YAML: it has more than" in error


def test_a_file_that_is_not_there_is_one_line(capsys):
    said = "--config no/such.yaml: No such file or directory; give a YAML file of flags\n"
    assert end_of("no/such.yaml", capsys).endswith(said)


def test_a_date_is_text_and_a_byte_order_mark_is_none(tmp_path):
    file = tmp_path / "service.yaml"
    file.write_bytes(b"\xef\xbb\xbfrevision: 2026-01-02\nhf-overrides: {a: 2026-13-45}\n")
    words = with_config_file(["--config", str(file)], PARSER)
    assert words[:2] == ["--revision=2026-01-02", '--hf-overrides={"a": "2026-13-45"}']


WORDS = (
    *("port", "api-key", "hf-overrides", ": ", "\n", "  ", "- ", "[", "]", "{", "}", ",", "&a "),
    *("*a", "!!set", "!!float", "1", "~", "2026-02-30", "'", '"', "|", "<<", "?"),
)


@settings(max_examples=200, deadline=None)
@given(
    st.one_of(
        st.binary(max_size=60),
        st.lists(st.sampled_from(WORDS)).map(lambda words: "".join(words).encode()),
    )
)
def test_any_file_is_flags_or_a_mistake(tmp_path_factory, data):
    file = tmp_path_factory.mktemp("config") / "service.yaml"
    file.write_bytes(data)
    try:
        words = with_config_file(["--config", str(file)], PARSER)
    except ValueError as error:
        words = [str(error)]
    assert str(file) in words[-1]  # the flag --config, or the message
