"""Docstrings, comments, messages and documents use the field's words, not private ones."""

import ast
import functools
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CODE = ("client", "consume", "dualstream", "load_tests", "service", "solvers", "wire", "deploy")
CODE += ("examples",)
DOCUMENTS = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "DESIGN.md", "SECURITY.md")

WORDS = {
    r"(is|are|was|were|be|been|being) told|told of|tells? (of|apart|what|how|who|whether|that|it)"
    r"|as told|who tells|telling": "returned, reported, notified",
    r"hears?|heard": "receives, reads",
    r"let(s|ting)? go of": "evict, release",
    r"tak(e|es|en|ing) (on|up)\b(?! to)": "accept, start",
    r"unread": "not loaded",
    r"rush": "overload",
    r"errands?": "job",
    r"desks?": "worker thread",
    r"doors?": "row schema",
    r"intakes?": "parsed rows",
    r"trails?": "lineage, history",
    r"c(o|a)me(s)? by": "history, lineage",
    r"parted|parting": "diverged",
    r"verdicts?": "outcome",
    r"obey(s|ed|ing)?": "apply",
    r"beside": "next to, in a worker thread",
    r"stands? (in|at|there|twice|behind|for itself|where)": "is",
    r"anew": "again",
    r"meanwhile": "(leave out)",
    r"so many": "N",
    r"each so|each \d+ (seconds|minutes|rows)": "every",
    r"of which nothing|of whom|of what is said": "(say it)",
    r"gone on with|go on with|goes on with": "resume",
    r"twice in a row": "duplicated",
    r"(?-i:is none)\b(?! of)": "is invalid, is not a ...",
    r"whoever|whomever|nobody|somebody": "the client, the caller, it",
    r"MOST_|LEAST_|FEWEST_": "MAX_, MIN_",
    r"held against": "compared with",
}
ALLOWED = re.compile(r"(nothing|none) but|nobody@|Nobody's", re.IGNORECASE)
FORBIDDEN = re.compile(
    r"(?<![\w.`/-])(" + "|".join(f"(?:{word})" for word in WORDS) + r")(?![\w`-]|\(|\.py|=)",
    re.IGNORECASE,
)
# Words that name nothing in an identifier, and how many uses of them each package still has.
PRIVATE = frozenset(
    "found place places placed given held asked known own told anew who whoever whatever behind"
    " stand stands goes verdict misfortune".split()
)
USES = {
    "client": 2,
    "consume": 3,
    "load_tests": 110,
    "service": 680,
    "solvers": 375,
    "tests": 1365,
    "wire": 6,
}
# Names of tests: subject, verb, condition.
VAGUE = frozenset("told anew who whoever whatever behind stand stands goes verdict held".split())


def texts_of(path: Path) -> Iterator[tuple[int, str]]:
    """Docstrings, comments and messages of a file, with their lines."""
    source = path.read_text()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(source)):
        # One word is a name; two words or more are a text.
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if re.search(r"\w[ \n]\w", node.value):
                yield node.lineno, node.value


@functools.cache
def words_of(name: str) -> frozenset[str]:
    return frozenset(word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name))


def identifiers(path: Path) -> Iterator[str]:
    """Names of variables, arguments, attributes, functions and classes, at each use."""
    for node in ast.walk(ast.parse(path.read_text())):
        for field in ("id", "attr", "arg", "name"):
            if isinstance(name := getattr(node, field, None), str):
                yield name


def found_in(text: str) -> list[str]:
    return [
        hit.group()
        for hit in FORBIDDEN.finditer(text)
        if not ALLOWED.search(text[max(0, hit.start() - 12) : hit.end() + 12])
    ]


def python_files() -> list[Path]:
    return [path for folder in CODE for path in sorted((ROOT / folder).rglob("*.py"))]


def documents() -> list[Path]:
    named = [ROOT / name for name in DOCUMENTS]
    pages = [*(ROOT / "docs").rglob("*.md"), *(ROOT / "service").rglob("DESIGN.md")]
    pages += (ROOT / "solvers").rglob("DESIGN.md")
    return [path for path in [*named, *sorted(pages)] if path.exists()]


@pytest.mark.parametrize("folder", CODE)
def test_code_is_written_in_plain_terms(folder):
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {word}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line, text in texts_of(path)
        for word in found_in(text)
    ]
    assert wrong == []


def test_documents_are_written_in_plain_terms():
    wrong = [
        f"{path.relative_to(ROOT)}:{number}: {word}"
        for path in documents()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        for word in found_in(line)
    ]
    assert wrong == []


def test_the_words_are_found_where_they_are_used():
    assert found_in("The client is told. Meanwhile it comes by, beside the errand.") == [
        "is told",
        "Meanwhile",
        "comes by",
        "beside",
        "errand",
    ]
    assert found_in("The lock is `held` and nothing but that.") == []


@pytest.mark.parametrize("folder", USES)
def test_identifiers_use_no_more_private_words(folder):
    names = [name for path in (ROOT / folder).rglob("*.py") for name in identifiers(path)]
    uses = [name for name in names if words_of(name) & PRIVATE]
    assert len(uses) <= USES[folder], Counter(uses).most_common(20)


def test_tests_are_named_by_subject_verb_and_condition():
    for path in (ROOT / "tests").rglob("test_*.py"):
        names = re.findall(r"def (test_\w+)", path.read_text())
        assert [name for name in names if words_of(name) & VAGUE] == [], path


def test_no_test_module_imports_from_another():
    imported = re.compile(r"^\s*(?:from|import) tests\b.*\btest_\w+", re.MULTILINE)
    for path in sorted((ROOT / "tests").rglob("*.py")):
        assert imported.findall(path.read_text()) == [], path


if __name__ == "__main__":
    import sys

    for name in sys.argv[1:]:
        for file in sorted(Path(name).rglob("*.py")) if Path(name).is_dir() else [Path(name)]:
            if file.suffix == ".py":
                hits = [(line, word) for line, text in texts_of(file) for word in found_in(text)]
            else:
                lines = enumerate(file.read_text().splitlines(), 1)
                hits = [(line, word) for line, text in lines for word in found_in(text)]
            for line, word in hits:
                print(f"{file}:{line}: {word}")  # noqa: T201
