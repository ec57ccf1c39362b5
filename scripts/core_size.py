"""Writes into README.md how many lines a plain decode step runs, beside the whole package.

python -m scripts.core_size
"""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_SENTENCE = re.compile(r"A plain decode step\s+runs[^.]*\.")


def core_sentence() -> str:
    """The sentence, by the files that `docs/reading.md` lists (a test compares them with a run)."""
    page = (ROOT / "docs" / "reading.md").read_text()
    host, device = (_size(_listed(page, side)) for side in ("host", "device"))
    whole = sum(map(_lines, (ROOT / "jaxinfer").rglob("*.py")))
    return (
        f"A plain decode step runs {host[0]} host files with {host[1]:,} lines and {device[0]} of\n"
        f"device code with {device[1]:,}; the whole package has {round(whole, -3):,}."
    )


def numbers(text: str) -> list[int]:
    """The numbers of the sentence, wherever it stands in a text."""
    (sentence,) = _SENTENCE.findall(text)
    return [int(number.replace(",", "")) for number in re.findall(r"\d[\d,]*", sentence)]


def _listed(page: str, side: str) -> list[Path]:
    table = page.partition(f"| {side}: ")[2].partition("\n\n")[0]
    return [ROOT / name for name in sorted(set(re.findall(r"`(jaxinfer/[\w/]+\.py)`", table)))]


def _size(files: list[Path]) -> tuple[int, int]:
    return len(files), round(sum(map(_lines, files)), -2)


def _lines(file: Path) -> int:
    return len(file.read_text().splitlines())


if __name__ == "__main__":
    readme = ROOT / "README.md"
    readme.write_text(_SENTENCE.sub(core_sentence(), readme.read_text()))
