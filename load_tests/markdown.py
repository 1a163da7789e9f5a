"""Paths of the documents, and Markdown tables. Needs no plotting library."""

from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


def table(heads: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """A Markdown table."""
    heads = list(heads)
    lines = [heads, ["---"] * len(heads), *([str(cell) for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"
