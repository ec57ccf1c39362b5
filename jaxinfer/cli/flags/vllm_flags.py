"""Flags of `vllm serve` that can't apply to a command, and what to do instead."""

import functools
import itertools
import re
from collections.abc import Mapping, Sequence

from jaxinfer.checks import instead_of_vllm
from jaxinfer.cli.flags.fields import flag_of
from jaxinfer.cli.flags.names import in_flags

_SHORT = {
    "-O": "--compilation-config",
    "-cc": "--compilation-config",
    "-ac": "--attention-config",
    "-dcp": "--decode-context-parallel-size",
    "-pcp": "--prefill-context-parallel-size",
    "-n": "--nnodes",
    "-r": "--node-rank",
    "-dpn": "--data-parallel-rank",
    "-dpr": "--data-parallel-start-rank",
    "-dpl": "--data-parallel-size-local",
    "-dpa": "--data-parallel-address",
    "-dpp": "--data-parallel-rpc-port",
    "-dpb": "--data-parallel-backend",
    "-dph": "--data-parallel-hybrid-lb",
    "-dpe": "--data-parallel-external-lb",
}


_FLAG = re.compile(r"--[a-z][a-z-]*")


@functools.cache
def instead_of_vllm_flags(wins: str = "serve") -> Mapping[str, str]:
    """A remedy for each of vLLM's flags; some of these are flags here, too.

    Args:
        wins: the table of `instead_of_vllm` that has the last word: "engine" or "serve".
    """
    tables = {kind: instead_of_vllm(kind) for kind in ("commands", "engine", "serve")}
    tables[wins] = tables.pop(wins)
    return {
        flag_of(name): in_flags(text) for each in tables.values() for name, text in each.items()
    }


def refusal_of_vllm_flags(argv: Sequence[str], known: set[str], wins: str) -> str | None:
    """One line about the first flag that is vLLM's and can't apply; None without one.

    Args:
        argv: the command line.
        known: the command's own flags.
        wins: as of `instead_of_vllm_flags`; "serve" is `vllm serve`, which has short flags.
    """
    short = _SHORT if wins == "serve" else {}
    for word in itertools.takewhile(lambda word: word != "--", argv):
        name, _, value = word.partition("=")
        is_text = " " in word and not value.startswith("{")  # argparse reads it as a value, too
        if not name.startswith("-") or name in known or is_text:
            continue
        long = name.split(".", 1)[0].replace("_", "-")
        long = short.get("-O" if long[:2] == "-O" else long, long)
        if long in known:
            continue
        table = instead_of_vllm_flags(wins)
        instead = table.get(long) or table.get(long.replace("--no-", "--", 1))
        if instead is not None:
            has_all = known.issuperset(_FLAG.findall(instead))
            return f"{long} does not apply: {instead if has_all else 'leave it out'}"
    return None
