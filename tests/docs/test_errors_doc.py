"""docs/reference/errors.md has exactly the problems that the code can return."""

import ast
import re
from collections import defaultdict

from tests.docs.documents import DOCUMENTS, ROOT


def problems_in_code() -> dict[str, set[str]]:
    """The statuses of each slug: of `Problem(STATUS, SLUG, ...)`, and what `slug` is set to."""
    result: dict[str, set[str]] = defaultdict(set)
    for path in [*(ROOT / "service").rglob("*.py"), *(ROOT / "wire").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in {
                "Problem",
                "problems.Problem",
            }:
                status, slug = node.args[:2]
                if isinstance(slug, ast.Constant):
                    result[slug.value].add(ast.unparse(status))
            elif isinstance(node, ast.Assign):
                names = {
                    part.id for part in ast.walk(node.targets[0]) if isinstance(part, ast.Name)
                }
                if names & {"slug", "_SLUGS"}:
                    for status, slug in _slugs_of(node.value):
                        result[slug].update(status)
    return result


def _slugs_of(value: ast.expr) -> list[tuple[set[str], str]]:
    """Of `STATUS, SLUG`, and of `{STATUS: SLUG, ...}.get(..., SLUG)`."""
    if isinstance(value, ast.Tuple):
        status, slug = value.elts
        return [({ast.unparse(status)}, slug.value)]
    results = [(set(), part.value) for part in ast.walk(value) if isinstance(part, ast.Constant)]
    for part in ast.walk(value):
        if isinstance(part, ast.Dict):
            pairs = zip(part.keys, part.values, strict=True)
            results += [({ast.unparse(status)}, slug.value) for status, slug in pairs]
    return [(status, slug) for status, slug in results if isinstance(slug, str)]


def test_every_problem_is_shown_of_with_its_status():
    text = DOCUMENTS["docs/reference/errors.md"]
    rows = re.findall(r"^\| `([\w-]+)` \| ([\w, ]+) \| \S", text, re.M)
    code = problems_in_code()
    assert [slug for slug, _ in rows] == sorted(code)
    for slug, status in rows:
        assert code[slug] <= set(status.split(", ")), slug
