"""The offline example of the page on serving."""

import re
from pathlib import Path
from types import SimpleNamespace

import jaxinfer

PAGE = Path(__file__).parents[3] / "docs" / "serving.md"
TEXT = (
    "<think>\nA tool.\n</think>\n\n"
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Naples"}}\n</tool_call>'
)


class ScriptedLLM:
    def chat(self, messages, *, tools):
        assert tools[0]["function"]["name"] == "get_weather"
        return [SimpleNamespace(outputs=[SimpleNamespace(text=TEXT)])]


def test_the_example_prints_reasoning_and_the_call(monkeypatch, capsys):
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (online,) = [block for block in blocks if block.startswith("weather =")]
    (offline,) = [block for block in blocks if "parse_answer" in block]
    names = {}
    exec(online.partition("answer =")[0], names)  # our own page
    monkeypatch.setattr(jaxinfer, "LLM", ScriptedLLM, raising=False)
    exec(offline, names)
    printed = capsys.readouterr().out
    assert "A tool." in printed
    assert "name='get_weather'" in printed
    assert '{"city": "Naples"}' in printed
