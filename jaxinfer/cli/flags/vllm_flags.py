"""Flags of `vllm serve` that can't apply to `jaxinfer serve`, and what to do instead."""

import functools
from collections.abc import Mapping, Sequence

from jaxinfer.checks import instead_of_vllm
from jaxinfer.cli.engine import in_flags
from jaxinfer.cli.flags.fields import flag_of
from jaxinfer.cli.flags.parser import CommandParser

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


@functools.cache
def instead_of_vllm_flags() -> Mapping[str, str]:
    """A remedy for each of vLLM's flags; some of these are flags here, too."""
    of_engine = {flag_of(name): in_flags(text) for name, text in instead_of_vllm("engine").items()}
    return of_engine | {flag_of(name): text for name, text in instead_of_vllm("serve").items()}


def refuse_vllm_flags(argv: Sequence[str], parser: CommandParser) -> None:
    """Exit with one line if a flag is vLLM's and can't apply here."""
    known = {name for action in parser._actions for name in action.option_strings}
    for word in argv:
        name = word.split("=", 1)[0]
        if not name.startswith("-") or name in known:
            continue
        long = name.split(".", 1)[0].replace("_", "-")
        long = _SHORT.get("-O" if long[:2] == "-O" else long, long)
        if long in known:
            continue
        table = instead_of_vllm_flags()
        instead = table.get(long) or table.get(long.replace("--no-", "--", 1))
        if instead is not None:
            parser.error(f"{long} does not apply: {instead}")
