"""Every command of README.md and docs/ runs as written and prints what the text says.

A document's commands run in their order, in a folder of their own, against a server with the models
of the documents before it. A block is left out by `<!-- not run: REASON -->` in the line above it.
"""

import ast
import json
import re
import shlex
from collections.abc import Iterator
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import pytest
import typer

from dualstream.service.cli import app
from dualstream.service.replica.parts import StatePart
from dualstream.solvers.jit import DISABLED
from tests.docs.documents import DOCUMENTS, ROOT, Shell, blocks, session

# Documents whose commands another test runs.
ELSEWHERE = {
    "docs/reference/cli.md": "test_cli_doc.py",
    "docs/reference/formats.md": "test_formats_doc.py",
    "docs/start/examples.md": "test_examples.py",
    "docs/guides/card-fraud.md": "test_card_fraud_doc.py",
    "docs/guides/kafka.md": "test_kafka_doc.py",
    "docs/guides/redis.md": "test_redis_doc.py",
    "docs/guides/nats.md": "test_nats_doc.py",
    "docs/guides/mqtt.md": "test_mqtt_doc.py",
    "docs/guides/tables.md": "test_stores_doc.py",
    "docs/operate/backup.md": "../service/cli/test_backup.py",
}
SOURCES = ("client", "consume", "service", "solvers", "wire", "tests", "load_tests", "examples")
FOLDERS = (*SOURCES, ".github", "deploy", "docs", "dualstream")
FILES = [
    path
    for folder in FOLDERS
    for path in (ROOT / folder).rglob("*")
    if path.is_file() and not {"vendor", "__pycache__"} & {*path.parts}
]
FILES += [path for path in ROOT.iterdir() if path.is_file()]
NAMES = {path.name for path in FILES}
# static/errors.md is a copy of a page of docs/, whose links it has.
LINKED = [path for path in FILES if path.suffix == ".md" and path.parent.name != "static"]
_BLOCKS = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\[[^\]]*\]\((?!https?:|mailto:)([^)#\s]*)(#[^)\s]+)?\)")
_HOOKS = (ROOT / "docs" / "site_hooks.py").read_text()
LONG = {"docs/guides/portfolio.md", "docs/guides/uploads.md"}
RUN_HERE = [
    pytest.param(
        name,
        marks=pytest.mark.skipif(
            DISABLED and name in LONG, reason="too many rows without a compiler"
        ),
    )
    for name, text in DOCUMENTS.items()
    if session(text) and name not in ELSEWHERE
]


@pytest.fixture(scope="module")
def shell(tmp_path_factory):
    shell = Shell(tmp_path_factory.mktemp("documents"))
    with shell.server:
        yield shell


@pytest.mark.parametrize("name", RUN_HERE)
def test_the_commands_run_as_written(shell, tmp_path, name):
    answers, said = shell.run(session(DOCUMENTS[name]), tmp_path)
    if name in SAID:
        SAID[name](answers, said)


@pytest.mark.parametrize(("name", "test"), ELSEWHERE.items())
def test_commands_that_are_run_elsewhere_are(name, test):
    text = (Path(__file__).parent / test).read_text()
    assert name in text and session(DOCUMENTS[name])


def test_no_command_hides_in_a_block_of_another_kind():
    commands = re.compile(
        r"^(\$ )?(curl|dualstream|make|docker|pip|redis-cli|python3?) ", re.MULTILINE
    )
    hidden = [
        (name, results.group())
        for name, text in DOCUMENTS.items()
        for is_run, language, lines in blocks(text)
        if is_run and language not in {"sh", "python", "json"}
        for results in [commands.search(lines)]
        if results
    ]
    assert hidden == []


def test_every_document_is_in_the_navigation():
    site = (ROOT / "mkdocs.yml").read_text()
    pages = re.findall(r"^ +- [^:]+: (\S+\.md)$", site, re.MULTILINE)
    elsewhere = re.findall(r'^    "(\S+\.md)": "', _HOOKS, re.M)
    written = [str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")]
    assert sorted(pages) == sorted([*written, *elsewhere, "reference/api.md"])
    linked = set(re.findall(r"\]\(([^)#]+)", DOCUMENTS["docs/index.md"]))
    assert {page for page in written if page.partition("/")[0] != "examples"} <= linked | {
        "index.md"
    }


def test_pages_can_follow_each_other_on_one_server():
    """A model is created once, on one page: a second PUT with another specification gets 409."""
    created = re.compile(
        r"""-X\ PUT\ \S*/models/([\w-]+)(?![\w/-]) | \bdualstream\ create\ ([\w-]+)
        | --create\ ([\w-]+)(?![\w.-]) | \.create\(\s*"([\w-]+)" """,
        re.VERBOSE,
    )
    pages: dict[str, list[str]] = {}
    for name, text in DOCUMENTS.items():
        for _, _, lines in blocks(text):
            for groups in created.findall(lines):
                pages.setdefault("".join(groups), []).append(name)
    assert len(pages) > 40 and {model: on for model, on in pages.items() if len(on) > 1} == {}


def test_every_link_leads_to_a_file_and_a_heading():
    broken = []
    for path in LINKED:
        for target, anchor in _LINK.findall(_BLOCKS.sub("", path.read_text())):
            there = (path.parent / target).resolve() if target else path
            ok = there.exists() and (not anchor or anchor[1:] in anchors(there))
            if not ok:
                broken.append((str(path.relative_to(ROOT)), target + anchor))
    assert broken == []


def test_file_names_exist():
    """`solve.py` and `journal/protocol.py` in running text: the end of a file's path."""
    pattern = re.compile(r"`([\w./-]+\.(?:py|md|ini|toml|yml|lua|js|sh))`")
    ends = {path.name: set[str]() for path in FILES}
    for path in FILES:
        ends[path.name].add(f"/{path.relative_to(ROOT)}")
    missing = [
        (str(path.relative_to(ROOT)), name)
        for path in LINKED
        for name in pattern.findall(_BLOCKS.sub("", path.read_text()))
        if not any(end.endswith(f"/{name}") for end in ends.get(name.rpartition("/")[2], ()))
    ]
    assert missing == []


def test_identifiers_in_design_documents_exist():
    """`Journal.append` and `FEATURE_SCOPES` in running text: names with capitals or underscores."""
    texts = [path.read_text() for path in FILES if path.suffix in {".py", ".lua", ".ini"}]
    words = set(re.findall(r"\w+", " ".join([*texts, *DOCUMENTS.values()])))
    missing = [
        (str(path.relative_to(ROOT)), name)
        for path in LINKED
        if path.name == "DESIGN.md"
        for name in re.findall(r"`([A-Za-z_][\w.]+)`", _BLOCKS.sub("", path.read_text()))
        if re.search(r"_|[a-z][A-Z]", name) and not (ROOT / name).exists()
        for last in [name.removesuffix(".py").rpartition(".")[2]]
        if not {last, f"DUALSTREAM_{last}"} & words and f"{last}.py" not in NAMES
    ]
    assert missing == []


def test_packages_are_listed_in_the_order_of_their_layers():
    rooms = (ROOT / "DESIGN.md").read_text().split("\n## Rooms\n")[1].split("\n## ")[0]
    listed = [
        re.findall(r"^([\w, ]+?) {2,}", block, re.MULTILINE) for block in _BLOCKS.findall(rooms)
    ]
    contracts = ConfigParser()
    contracts.read(ROOT / "importlinter.ini")
    layers = [
        contracts[f"importlinter:contract:{name}"]["layers"].split("\n")[1:]
        for name in ("packages", "rooms", "solvers")
    ]
    assert [re.findall(r"\w+", str(names)) for names in listed] == [
        re.findall(r"\w+", str(names)) for names in layers
    ]


def test_threads_are_listed():
    threads = (ROOT / "DESIGN.md").read_text().split("\n## Threads\n")[1].split("\n## ")[0]
    listed = re.findall(r"`([^`]+)`", "".join(re.findall(r"^\|([^|]+)\|", threads, re.MULTILINE)))
    code = [path for path in (ROOT / "service").rglob("*.py") if "Thread" in path.read_text()]
    assert sorted(listed) == sorted(
        {name for path in code for name in names_of_threads(ast.parse(path.read_text()))}
    )


def test_hooks_of_features_are_listed():
    document = (ROOT / "service/features/DESIGN.md").read_text()
    section = document.split("\n## A part of the state\n")[1].split("\n## ")[0]
    listed = re.findall(r"`(\w+)`", "".join(re.findall(r"^\|([^|]+)\|", section, re.MULTILINE)))
    assert sorted(listed) == sorted(name for name in vars(StatePart) if name[0] != "_")


def names_of_threads(tree: ast.Module) -> Iterator[str]:
    """Names that are constants: of `Thread(name="n")`, `SingleThread("n")` and its subclasses."""
    for node in ast.walk(tree):
        calls: list[ast.AST] = []
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("Thread"):
            calls = [node]
        elif isinstance(node, ast.ClassDef) and "SingleThread" in map(ast.unparse, node.bases):
            calls = [
                one for one in ast.walk(node) if ast.unparse(one).startswith("super().__init__(")
            ]
        for call in calls:
            if isinstance(call, ast.Call):
                names = [keyword.value for keyword in call.keywords if keyword.arg == "name"]
                for value in [*call.args[:1], *names]:
                    if isinstance(value, ast.Constant):
                        yield value.value


def anchors(path: Path) -> set[str]:
    """The anchors of a document's headings, as GitHub and MkDocs make them."""
    titles = re.findall(r"^#+ (.+)$", _BLOCKS.sub("", path.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def test_documents_that_the_code_names_exist():
    named = re.compile(r"\bdocs/[\w/-]+\.md\b")
    files = [path for folder in SOURCES for path in (ROOT / folder).rglob("*.py")]
    for path in [*files, ROOT / "Makefile", *(ROOT / "deploy").glob("*.yml")]:
        for name in named.findall(path.read_text()):
            assert (ROOT / name).is_file(), f"{path}: {name}"


def test_what_is_named_in_passing_exists():
    """`dualstream serve --adopt`, `make chaos`, `python -m load_tests latency` in running text."""
    group = typer.main.get_group(app)
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    more = {name: (ROOT / name).read_text() for name in ("CONTRIBUTING.md", "SECURITY.md")}
    for name, text in (DOCUMENTS | more).items():
        for span in re.findall(r"`((?:dualstream|make|python -m) [^`]+)`", _BLOCKS.sub("", text)):
            program, *words = shlex.split(span.replace("\n", " "))
            where = f"{name}: {span}"
            if program == "make":
                assert {word for word in words if "=" not in word} <= targets, where
            elif program == "python":
                path = ROOT / words[1].replace(".", "/")
                assert path.is_dir() or path.with_suffix(".py").exists(), where
            elif words[0] in group.commands:
                _, command, _ = group.resolve_command(None, words[:1])
                flags = {flag for option in command.params for flag in option.opts}
                used = {word.partition("=")[0] for word in words if word.startswith("--")}
                assert used <= flags | {"--help"}, where
            else:
                assert words[0].startswith("--") or words[0].isupper() or "|" in words, where


def of_readme(answers: list[dict], said: str) -> None:
    created, first, second, one, many, metrics, members, weights = answers[:8]
    numbered, third, certificate = answers[8:]
    assert (created["id"], created["spec"]["members"]) == ("clicks", "full")
    # The answer that the README shows is the one that comes back.
    shown = re.search(
        r"```json\n(\{\"model\": \"clicks\".*?\})\n```", DOCUMENTS["README.md"], re.DOTALL
    ).group(1)
    assert first == json.loads(shown)
    assert (second["seq"], second["count"]) == (3, 2)
    assert one["label"] == 1 and one["seq"] == 3
    assert len(many["scores"]) == 2
    assert metrics["samples"] == 3 and len(members["members"]) == 15
    assert "site=news" in [weight["name"] for weight in weights["weights"]]
    assert numbered["id"] == "numbered" and third["seq"] == 2 and certificate["rows"] == 2
    assert "dualstream_samples_total" in said


def of_portfolio(answers: list[dict], said: str) -> None:
    assert answers[1]["learned"] == 2000
    compared = [answer for answer in answers if "low" in answer]
    assert [answer["a"] for answer in compared] == ["recent", "dual-3"]
    assert compared[0]["rows"] == 2000 and compared[1]["rows"] == 4000
    assert answers[-1]["member"] == "dual-30" and answers[-1]["gap"] >= 0.0
    promoted = next(answer for answer in answers if answer.get("name") == "dual-3")
    assert promoted["weight"] == 1.0


def of_versions(answers: list[dict], said: str) -> None:
    _, _, monday, _, listed, by_monday, undone, read, redone, what_if = answers
    assert listed["versions"] == [monday] and listed["kept_from"] == 1
    assert by_monday["seq"] == monday["seq"] == 1
    assert (undone["seq"], undone["to_seq"], read["samples"]) == (3, 1, 1)
    assert (redone["seq"], redone["to_seq"]) == (4, 2)
    assert "campaign at seq 2, from " in said
    assert what_if["left_out_rollbacks"] == 2 and what_if["spec"]["rho"] == 0.01


def of_uploads(answers: list[dict], said: str) -> None:
    _, first, again, *lines = answers
    chunks = {"chunks": 2, "duplicate_chunks": 0, "duplicate_rows": 0}
    assert {
        "seq": 60000,
        "count": 60000,
    }.items() <= first.items() and chunks.items() <= first.items()
    assert again == first | {"duplicate": True, "duplicate_chunks": 2}
    assert [line.get("chunk") for line in lines] == [0, 1, None]
    assert (lines[-1]["seq"], lines[-1]["count"]) == (120000, 60000)


def shown_in(page: str, pattern: str) -> Any:
    [shown] = re.findall(pattern, DOCUMENTS[page], re.DOTALL)
    return json.loads(shown)


def of_intervals(answers: list[dict], said: str) -> None:
    got = {name: float(f"{value:.4g}") for name, value in answers[-1]["intervals"][0].items()}
    assert [got] == shown_in("docs/guides/intervals.md", r' {4}"intervals": (\[.*?\])\n')


def of_decisions(answers: list[dict], said: str) -> None:
    got = {
        name: round(value, 2) if isinstance(value, float) else value
        for name, value in answers[2].items()
    }
    assert got == shown_in("docs/guides/decisions.md", r'(\{"model": "transfers".*?\})\n')


def of_segments(answers: list[dict], said: str) -> None:
    page = DOCUMENTS["docs/guides/segments.md"]
    [shown] = re.findall(r"orders: seq 3,000[^\n]*\n(.*?)```", page, re.DOTALL)
    assert shown.splitlines() == [line.rstrip() for line in said.splitlines()[-5:]]


def of_events(answers: list[dict], said: str) -> None:
    assert "event: progress\nid: 1-" in said


def of_guard_rails(answers: list[dict], said: str) -> None:
    created, good, bad, model, timeline, resumed = answers
    assert created["spec"]["guard"]["mode"] == "pause" and created["paused"] is None
    assert (good["learned"], bad["count"], bad["learned"]) == (3000, 500, 200)
    assert bad["errors"][0]["reason"].startswith("paused: ")
    assert model["paused"]["since"] == 3200 == timeline["events"][-1]["seq"]
    assert (resumed["rows"], resumed["learned"], resumed["since"]) == ("drop", 0, 3200)


def of_late_labels(answers: list[dict], said: str) -> None:
    _, served, labelled, again, by_default, _, first, revised = answers
    assert served["remembered"] == 2 and len(served["scores"]) == 2
    assert (labelled["seq"], labelled["count"], labelled["rejected"]) == (1, 1, 1)
    assert [error["index"] for error in labelled["errors"]] == [1]
    assert again["duplicates"] == [{"index": 0, "seq": 1}] and again["duplicate"]
    assert by_default["remembered"] == 1
    assert (first["learned"], revised["learned"]) == (1, 1)


SAID = {
    "README.md": of_readme,
    "docs/guides/portfolio.md": of_portfolio,
    "docs/guides/versions.md": of_versions,
    "docs/guides/uploads.md": of_uploads,
    "docs/guides/events.md": of_events,
    "docs/guides/late-labels.md": of_late_labels,
    "docs/guides/guard.md": of_guard_rails,
    "docs/guides/intervals.md": of_intervals,
    "docs/guides/decisions.md": of_decisions,
    "docs/guides/segments.md": of_segments,
}
