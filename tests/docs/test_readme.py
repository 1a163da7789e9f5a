"""The README is short, and what the documents say of portfolios and specs is true."""

import re

import pytest

from dualstream.solvers.portfolio.fused_members import Blueprint
from dualstream.solvers.portfolio.presets import PRESETS, REGRESSION_PRESETS
from dualstream.solvers.spec.algorithms import ALGORITHMS
from dualstream.solvers.spec.validate import resolve_spec
from tests.docs.documents import DOCUMENTS, ROOT

TASKS = {"semiparametric": "regression"}
README = DOCUMENTS["README.md"]
PORTFOLIO = DOCUMENTS["docs/guides/portfolio.md"]


def test_figures_are_those_of_the_measurements():
    streams = DOCUMENTS["docs/internals/streams.md"]
    rows = re.findall(r"^\| ([^|]+) \| (.*\(\d+\).*) \|$", README, re.MULTILINE)
    for stream, figures in rows:
        [measured] = re.findall(
            rf"^\| {re.escape(stream)} \|.*\(\d+\) \|.*$", streams, re.MULTILINE
        )
        *_, full, lightgbm, vw, river, _, _ = measured.removesuffix(" |").split(" | ")
        named = [full, *(re.sub(r" \w+ ", " ", cell) for cell in (lightgbm, vw, river))]
        assert figures.split(" | ") == named, stream
    assert len(rows) == 4 and sum(not figures.startswith("**") for _, figures in rows) == 1
    [mae] = re.findall(
        r"^\| published \| ([\d.]+) \|", DOCUMENTS["docs/internals/records.md"], re.MULTILINE
    )
    assert f"is {float(mae):.2f} times the published one" in README


def test_the_readme_leads_to_few_pages():
    assert len(re.findall(r"(?<!!)\[[^\]]*\]\(", README)) <= 25


def test_every_member_of_a_list_is_described():
    regression = DOCUMENTS["docs/internals/regression.md"]
    for lists, text in ((PRESETS, PORTFOLIO), (REGRESSION_PRESETS, regression)):
        for members in lists.values():
            for member in members:
                assert f"| `{member['name']}` |" in text, member["name"]


def test_memory_of_a_feature_is_what_the_document_says():
    said = re.findall(r"^\| `(\w+)` \| (\d+) \| (\d+) \| (\d+) \|$", PORTFOLIO, re.MULTILINE)
    assert len(said) == 4
    for name, members, seconds, memory in said:
        mine = {**PRESETS, **REGRESSION_PRESETS}[name]
        plan = Blueprint([member for member in mine if member["kind"] != "prior"])
        assert (len(plan.what), len(plan.starts)) == (int(members), int(seconds))
        assert 8 * plan.width + 20 == int(memory)


def test_every_file_that_cites_a_paper_is_listed_where_the_formulas_are():
    listed = re.findall(r"`(solvers/[\w/]+\.py)`", DOCUMENTS["docs/internals/formulas.md"])
    assert all((ROOT / file).is_file() for file in listed)
    cites = re.compile(r"\b(19|20)\d\d\b|\bthesis\b")
    for path in (ROOT / "solvers").rglob("*.py"):
        says = re.match(r'"""(.*?)"""', path.read_text(), re.DOTALL)
        if says and cites.search(says.group(1)):
            assert str(path.relative_to(ROOT)) in listed, path


def test_every_field_of_a_spec_is_documented():
    text = DOCUMENTS["docs/reference/specification.md"]
    for algorithm in ALGORITHMS:
        task = TASKS.get(algorithm, "binary")
        spec = {"algorithm": algorithm, "task": task, "features": {"kind": "indexed", "dim": 3}}
        for field in resolve_spec(spec):
            assert f"`{field}`" in text, f"{algorithm}: {field}"
        assert f"`{algorithm}`" in text


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("README.md", 150),
        ("DESIGN.md", 300),
        ("CHANGELOG.md", 75),
        ("CONTRIBUTING.md", 120),
        *((f"service/{room}/DESIGN.md", 240) for room in ("journal", "models", "replica")),
        ("service/http/DESIGN.md", 230),
        ("solvers/DESIGN.md", 230),
    ],
)
def test_documents_of_the_code_are_short(name, lines):
    assert len((ROOT / name).read_text().splitlines()) <= lines
