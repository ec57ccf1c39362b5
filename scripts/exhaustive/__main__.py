"""Runs every test marked `exhaustive`, once and whole, and records it in benchmarks/results/.

python -m scripts.exhaustive
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from scripts.exhaustive.report import figures_of
from scripts.gpu_gate.source_tree import package_tree_id
from scripts.measurements.results import RESULTS, ROOT, save_result


def main() -> int:
    """Run pytest and return its exit status; the record keeps every outcome."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output-directory", type=Path, default=RESULTS)
    directory = parser.parse_args().output_directory
    tree = package_tree_id()
    with tempfile.TemporaryDirectory() as temporary:
        report = Path(temporary) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-m", "exhaustive", f"--junitxml={report}"]
        done = subprocess.run([*command, "-o", "junit_family=xunit1"], cwd=ROOT, check=False)
        if not report.exists():
            return done.returncode
        figures = figures_of(report) | {"command": "python -m scripts.exhaustive"}
    if package_tree_id() != tree:
        print("error: jaxinfer/ changed during the run; no record is kept", file=sys.stderr)
        return 1
    print(f"kept in {save_result('exhaustive', figures, directory)}")
    return done.returncode


if __name__ == "__main__":
    raise SystemExit(main())
