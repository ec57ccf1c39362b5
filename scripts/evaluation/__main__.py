"""`python -m scripts.evaluation`: a model's accuracy on held-out questions, through the engine."""

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from jaxinfer.cli.engine import open_engine
from jaxinfer.cli.flags.engine import add_engine_flags
from jaxinfer.cli.flags.parser import positive_integer
from jaxinfer.cli.flags.process import process_arguments
from jaxinfer.cli.platform import start_platform
from scripts.evaluation.engine_trials import run_trials, story_loss
from scripts.evaluation.rates import below_bar, questions, rates
from scripts.evaluation.report import rate_records, report_lines
from scripts.speed.report import engine_record

MAX_NUM_SEQS = 64


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.evaluation",
        description="Ask held-out questions (sums, chats, JSON, tool calls) by greedy decoding and "
        "report the rates of right answers. The bars are the bundled model's targets.",
    )
    parser.add_argument(
        "--questions", type=positive_integer, default=50, help="of each of nine kinds (default: 50)"
    )
    parser.add_argument(
        "--question-seed", type=int, default=0, help="draws other questions (default: 0)"
    )
    parser.add_argument("--check", action="store_true", help="exit status 1 below a bar")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress")
    own = {"max_num_seqs": str(MAX_NUM_SEQS), "compile_ahead": "at first use"}
    add_engine_flags(parser, defaults=own)
    return parser.parse_args(argv)


def evaluate(arguments: argparse.Namespace) -> dict[str, Any] | None:
    """Rates, story loss, engine and machine, as JSON-like values.

    None on processes that follow process 0.
    """
    count, seed = arguments.questions, arguments.question_seed
    asked = questions(count, seed)
    defaults = {"compile_ahead": False, "max_num_seqs": MAX_NUM_SEQS}
    with open_engine(arguments, defaults, quiet=arguments.quiet) as llm:
        if llm.follows:
            llm.follow()
            return None
        found = rates(run_trials(llm, asked, use_tqdm=not arguments.quiet))
        return {
            **engine_record(llm, None),
            "questions_per_kind": count,
            "question_seed": seed,
            "rates": rate_records(found),
            "below_bar": below_bar(found),
            "story_loss": story_loss(llm, count, seed),
        }


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the report; 1 if it misses a bar and `--check` asks."""
    arguments = parse_arguments(argv)
    start_platform(process_arguments(arguments))
    report = evaluate(arguments)
    if report is None:
        return 0
    print(json.dumps(report, indent=2) if arguments.json else "\n".join(report_lines(report)))
    return 1 if arguments.check and report["below_bar"] else 0


if __name__ == "__main__":
    sys.exit(main())
