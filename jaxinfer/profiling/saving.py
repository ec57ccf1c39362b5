"""Writes a report into its profile's directory: as JSON, as text, and as a picture."""

import json
from pathlib import Path

from jaxinfer.profiling.files import REPORT_JSON, REPORT_TEXT, STEP_PICTURE
from jaxinfer.profiling.pictures.strip import strip
from jaxinfer.profiling.report import ProfileReport


def save_report(report: ProfileReport, directory: Path) -> None:
    """Write all forms of a report."""
    (directory / REPORT_JSON).write_text(json.dumps(report.to_dict(), indent=1) + "\n")
    (directory / REPORT_TEXT).write_text(f"{report}\n")
    (directory / STEP_PICTURE).write_text(strip(report))
