"""Writes the plain path, as it runs, into docs/reading.md, and its size into README.md.

python -m scripts.reading            # writes both
python -m scripts.reading --json     # prints the trace, for tests
"""

import argparse
import json

from scripts.reading.page import PAGE, README, with_core_sentence, with_path
from scripts.reading.plain_path import plain_path


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m scripts.reading", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print the trace, and write nothing")
    arguments = parser.parse_args()
    path = plain_path()
    if arguments.json:
        print(json.dumps(path._asdict()))
        return
    PAGE.write_text(with_path(PAGE.read_text(), path))
    README.write_text(with_core_sentence(README.read_text(), path))


if __name__ == "__main__":
    main()
