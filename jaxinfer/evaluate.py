"""`jaxinfer evaluate`: a model's accuracy on held-out questions, through the engine."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jaxinfer.cli.flags.engine import add_engine_flags
from jaxinfer.cli.flags.parser import CommandParser, positive_integer
from jaxinfer.cli.flags.process import process_arguments
from jaxinfer.cli.process import FAILED, OK, end_process, run_command
from jaxinfer.cli.report import print_report

if TYPE_CHECKING:
    import argparse

_MAX_NUM_SEQS = 64

_EXAMPLES = """examples:
  jaxinfer evaluate
  jaxinfer evaluate --questions 200 --check
  jaxinfer evaluate --dtype bfloat16 --block-size 64 --json"""


def build_parser() -> CommandParser:
    """The flags of `jaxinfer evaluate`."""
    description = (
        "Ask held-out questions (sums, chats, JSON, tool calls) by greedy decoding and report the "
        "rates of right answers. The bars are the bundled model's targets."
    )
    parser = CommandParser("evaluate", description, _EXAMPLES)
    parser.add_argument(
        "--questions",
        type=positive_integer,
        default=50,
        help="number of questions of each of nine kinds (default: 50)",
    )
    parser.add_argument(
        "--question-seed", type=int, default=0, help="draws other questions (default: 0)"
    )
    parser.add_argument("--check", action="store_true", help="exit status 1 below a bar")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress")
    own = {"max_num_seqs": str(_MAX_NUM_SEQS), "compile_ahead": "at first use"}
    add_engine_flags(parser, defaults=own)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    arguments = build_parser().parse_args(argv)
    return run_command("evaluate", lambda: _run(arguments))


def _run(arguments: "argparse.Namespace") -> int:
    from jaxinfer.cli.platform import start_platform

    start_platform(process_arguments(arguments))
    report = evaluation_report(arguments)
    if report is None:
        return OK
    from jaxinfer.evaluation.report import report_lines

    print_report(report, report_lines, as_json=arguments.json)
    return FAILED if arguments.check and report["below_bar"] else OK


def evaluation_report(arguments: "argparse.Namespace") -> dict[str, Any] | None:
    """Rates, story loss, engine and machine, as JSON-like values.

    None on processes that follow process 0.
    """
    from jaxinfer.cli.engine import open_engine
    from jaxinfer.evaluation.engine_trials import run_trials, story_loss
    from jaxinfer.evaluation.rates import below_bar, questions, rates
    from jaxinfer.evaluation.report import rate_records
    from jaxinfer.measure.report import describe_engine

    count, seed = arguments.questions, arguments.question_seed
    asked = questions(count, seed)
    defaults = {"compile_ahead": False, "max_num_seqs": _MAX_NUM_SEQS}
    with open_engine(arguments, defaults, quiet=arguments.quiet) as llm:
        if llm.follows:
            llm.follow()
            return None
        found = rates(run_trials(llm, asked, use_tqdm=not arguments.quiet))
        return {
            **describe_engine(llm, None),
            "questions_per_kind": count,
            "question_seed": seed,
            "rates": rate_records(found),
            "below_bar": below_bar(found),
            "story_loss": story_loss(llm, count, seed),
        }


if __name__ == "__main__":
    end_process(main(sys.argv[1:]))
