"""Flat rows with and without crosses and n-grams, next to Vowpal Wabbit with the same.

`python -m load_tests.streams.flat_rows` measures and replaces its section of
docs/internals/streams.md. Vowpal Wabbit gets the same columns and words as names, with `-q ::` for
all pairs of columns and `--ngram 2` for pairs of words.
"""

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numpy as np
from vowpalwabbit import LabelType, Workspace

from dualstream.service.cli.demo.adult import adult_samples
from dualstream.service.codecs import as_batch, parse_body
from dualstream.service.codecs.row_schema import RowSchema
from dualstream.solvers import Batch, make_learner, resolve_spec
from dualstream.solvers.rows.columns.values import words_of
from load_tests import messages
from load_tests.markdown import DOCS, table
from load_tests.paper_tables.data import dense
from load_tests.streams import data

Row = Mapping[str, Any]
TITLE = "Columns, crosses and n-grams"
MAX_ROWS = 20_000
PORTFOLIOS = ("eight", "full")
VW = "--loss_function logistic --quiet"
PHISHING_COLUMNS = 30
_NAME = re.compile(r"[^\w.-]")


@dataclass(frozen=True)
class Stream:
    """Labelled rows, and what is added to them: crosses of categories, or pairs of words."""

    name: str
    rows: Sequence[Row]
    types: Mapping[str, Any]
    added: str
    vw: str
    """Options of Vowpal Wabbit that add the same."""

    def spec(self, is_added: bool) -> dict[str, Any]:
        if self.added == "crosses":
            crosses = {"crosses": ["*"]} if is_added else {}
            return {"columns": {"types": dict(self.types)}, **crosses}
        kinds = {name: {"kind": "text", "ngrams": 1 + is_added} for name in self.types}
        return {"columns": {"types": kinds}}


def streams() -> Iterator[Stream]:
    yield _of_text("spam, generated", messages.made(5_000, 0))
    adult = [sample["x"] | {"y": sample["y"]} for sample in adult_samples()][:MAX_ROWS]
    yield _of_categories("adult", adult)
    yield _of_categories("phishing", phishing(data.stream("phishing")))


def _of_text(name: str, samples: Iterator[tuple[Row, int]]) -> Stream:
    rows = [{**x, "y": y} for x, y in samples]
    return Stream(name, rows, {"text": "text"}, "pairs of words", "--ngram 2")


def _of_categories(name: str, rows: Sequence[Row]) -> Stream:
    columns = dict.fromkeys(column for row in rows for column in row if column != "y")
    return Stream(name, rows, dict.fromkeys(columns, "category"), "crosses", "-q ::")


def phishing(batch: Batch) -> list[Row]:
    """Rows of the 30 categorical columns whose values LIBSVM's file has as 68 binary columns.

    The first 30 are the values of the first row; any other belongs to the column with whose first
    value it never occurs.
    """
    ones = dense(batch) > 0
    together = ones.T.astype(int) @ ones.astype(int)
    owners = [int(np.flatnonzero(together[:PHISHING_COLUMNS, j] == 0)[0]) for j in range(68)[30:]]
    owner = [*range(PHISHING_COLUMNS), *owners]
    rows = []
    for row, label in zip(ones, batch.labels.tolist(), strict=True):
        values = {f"c{owner[j]}": f"v{j}" for j in np.flatnonzero(row).tolist()}
        rows.append(dict(sorted(values.items())) | {"y": int(label > 0)})
    return rows


def ours(stream: Stream, portfolio: str, is_added: bool) -> tuple[float, float]:
    """Share of errors before a row is learned, and seconds to read and learn all."""
    spec = resolve_spec(stream.spec(is_added) | {"members": portfolio})
    body = json.dumps(list(stream.rows)).encode()
    learner = make_learner(spec)
    began = time.process_time()
    parsed = parse_body(RowSchema(spec), None, body, labelled=True)
    batch = as_batch([parsed.rows])
    scores = learner.learn(batch).scores
    seconds = time.process_time() - began
    assert not parsed.errors
    return _errors(scores, batch.labels), seconds


def vowpal_wabbit(stream: Stream, is_added: bool) -> tuple[float, float]:
    """As `ours`. A row is predicted by the step that learns it, which scores it first."""
    lines = [vw_line(row, stream.types) for row in stream.rows]
    labels = np.array([1.0 if row["y"] == 1 else -1.0 for row in stream.rows])
    workspace = Workspace(f"{VW} {stream.vw}" if is_added else VW)
    scores = np.empty(len(lines))
    began = time.process_time()
    for number, line in enumerate(lines):
        example = workspace.parse(line, LabelType.SIMPLE)
        workspace.learn(example)
        scores[number] = example.get_simplelabel_prediction()
        workspace.finish_example(example)
    return _errors(scores, labels), time.process_time() - began


def vw_line(row: Row, types: Mapping[str, Any]) -> str:
    """A row as text: each column of categories is a feature, each word of a text."""
    label = 1 if row["y"] == 1 else -1
    names: list[str] = []
    for name, kind in types.items():
        if name not in row:
            continue
        if kind == "text":
            names += words_of(name, row[name])
        else:
            names.append(f"{_NAME.sub('_', name)}={_NAME.sub('_', str(row[name]))}")
    return f"{label} |f {' '.join(names)}"


def _errors(scores: np.ndarray, labels: np.ndarray) -> float:
    return float(np.mean((scores >= 0.0) != (labels > 0.0)))


def section() -> str:
    """The measured table, as Markdown."""
    learners: dict[str, Callable[[Stream, bool], tuple[float, float]]] = {
        f"`{name}`": lambda stream, is_added, name=name: ours(stream, name, is_added)
        for name in PORTFOLIOS
    }
    learners["Vowpal Wabbit"] = vowpal_wabbit
    heads = ["stream", "rows", "added"]
    heads += [f"{name}{end}" for name in learners for end in ("", ", added")]
    lines = []
    for stream in streams():
        cells = [stream.name, f"{len(stream.rows):,}", f"{stream.added}, `{stream.vw}`"]
        for learner in learners.values():
            for is_added in (False, True):
                rate, seconds = learner(stream, is_added)
                cells.append(f"{100 * rate:.2f} ({1e6 * seconds / len(stream.rows):.0f})")
        lines.append(cells)
        print(*cells, sep=" | ", flush=True)
    text = TEXT.format(vw=version("vowpalwabbit"), rows=f"{MAX_ROWS:,}")
    return f"{text}\n{table(heads, lines)}"


TEXT = """Written by `DUALSTREAM_DATA=... python -m load_tests.streams.flat_rows`. Flat rows of
models with [columns](../guides/columns.md), at most the first {rows}: generated messages of
`load_tests/messages.py`, UCI Adult with 14 columns of categories, and phishing with 30. *Added* are
all pairs of columns (`"crosses": ["*"]`), or pairs of words (`"ngrams": 2`), and for Vowpal Wabbit
{vw} the option that is named. Percentage of errors; in brackets the CPU time of a row in
microseconds. Ours includes reading JSON; Vowpal Wabbit is called for each row from Python.
"""


def main() -> None:
    path = DOCS / "internals/streams.md"
    before, _, _ = path.read_text().partition(f"\n## {TITLE}\n")
    path.write_text(f"{before.rstrip()}\n\n## {TITLE}\n\n{section()}")


if __name__ == "__main__":
    main()
