"""Renders chat templates in a process of its own, because a template is a stranger's program.

The sandbox of Jinja keeps a template from reaching Python, but not from running or growing without
end, and nothing inside a process can stop one long C call. Here the kernel does: a CPU-time alarm
and an address-space limit that end this process and nothing else.

Protocol: one JSON object a line on stdin, `{"template", "variables", "cpu_seconds", "max_chars"}`;
one JSON object a line on stdout, `{"text"}` or `{"error"}`. The end of stdin ends the process.
This file is run by its path and imports nothing of the project.
"""

import contextlib
import functools
import json
import resource
import signal
import sys
from collections.abc import Iterable
from datetime import datetime
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

_MEMORY_BYTES = 1 << 30
_MAX_ERROR_CHARS = 500


class GenerationTag(jinja2.ext.Extension):
    """Accepts `{% generation %}…{% endgeneration %}`, a mark for training; renders its body."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's own spelling

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        """Replace the tag by the statements inside it."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body, lineno=line)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(spec: str) -> str:
    return datetime.now().strftime(spec)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without the escaping of HTML that Jinja's own filter adds."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


@functools.lru_cache(maxsize=8)
def _compile(template: str) -> jinja2.Template:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols, GenerationTag]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment.from_string(template)


def _collect(pieces: Iterable[str], max_chars: int) -> str:
    kept: list[str] = []
    total = 0
    for piece in pieces:
        total += len(piece)
        if total > max_chars:
            raise jinja2.TemplateError(f"the output is longer than {max_chars} characters")
        kept.append(piece)
    return "".join(kept)


def _render(request: dict[str, Any]) -> dict[str, str]:
    try:
        pieces = _compile(request["template"]).generate(**request["variables"])
        return {"text": _collect(pieces, request["max_chars"])}
    except MemoryError:
        return {"error": f"it needed more than {_MEMORY_BYTES >> 20} MiB of memory"}
    except RecursionError:
        return {"error": "it is nested too deeply"}
    except jinja2.TemplateError as error:
        return {"error": " ".join(str(error).split())[:_MAX_ERROR_CHARS]}
    except Exception as error:  # any exception of a stranger's template is its own error, not ours
        text = " ".join(f"{type(error).__name__}: {error}".split())
        return {"error": text[:_MAX_ERROR_CHARS]}


def main() -> None:
    """Answer requests until stdin ends."""
    with contextlib.suppress(ValueError, OSError):  # some systems refuse this limit
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    for line in sys.stdin:
        request = json.loads(line)
        # The default action of SIGPROF ends the process, even in the middle of a C call.
        signal.setitimer(signal.ITIMER_PROF, request["cpu_seconds"])
        answer = json.dumps(_render(request))
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.write(answer + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
