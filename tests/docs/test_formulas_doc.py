"""docs/internals/formulas.md names every file of the learners that says which paper it computes."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
FORMULAS = (ROOT / "docs/internals/formulas.md").read_text()
CITES = re.compile(r"\((19|20)\d\d\)|thesis|Algorithm \d|Theorem")


def test_every_file_that_cites_a_paper_is_named():
    named = set(re.findall(r"`(solvers/[^`]+\.py)`", FORMULAS))
    assert {name for name in named if not (ROOT / name).exists()} == set()
    citing = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "solvers").rglob("*.py")
        if CITES.search(ast.get_docstring(ast.parse(path.read_text())) or "")
    }
    assert citing - named == set()
