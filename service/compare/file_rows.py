"""A file of rows -> its specification, and the rows as they are encoded by it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from dualstream.client import BadInput, RowFile
from dualstream.service.codecs import ParsedRows, RowSchema, as_batch, parse_chunk
from dualstream.service.compare.columns import MAX_WIDTH, TableColumns, table_spec
from dualstream.service.compare.frozen import FrozenModel
from dualstream.service.compare.stored_rows import StoredRows
from dualstream.service.features.infer.forms import is_number, is_time
from dualstream.service.features.infer.labels import TASKS
from dualstream.service.features.infer.propose import propose
from dualstream.service.features.infer.sample import Sample
from dualstream.service.features.infer.sampled_values import seen_in
from dualstream.solvers import Batch, InvalidSpec, resolve_spec
from dualstream.solvers.jit import Floats, Ints
from dualstream.wire.chunking.chunks import MARK, check_is_plain
from dualstream.wire.plural import plural
from dualstream.wire.problem_json import Problem, RowError
from dualstream.wire.text_values import nfc

SAMPLE = 10_000
MIN_ROWS = 50
SHOWN = 3

OnRead = Callable[[int, int], None]
"""Bytes of the file read so far, and rows."""


@dataclass(slots=True)
class FileRows:
    """The rows of a file."""

    spec: dict[str, Any]
    """The specification as it was proposed or declared, without defaults."""
    rows: StoredRows
    columns: TableColumns | None
    """Columns of the table; None if the rows do not fit into one."""
    why_no_table: str = ""
    refused: int = 0
    reasons: list[str] = field(default_factory=list)
    """Why some rows were refused."""
    frozen: FrozenModel | None = None
    frozen_columns: TableColumns | None = None
    """Columns of the table of the saved model."""
    notes: list[str] = field(default_factory=list)
    """What a reader of the result must know about the rows."""
    times: str | None = None
    """What the rows are sorted by: `times` or `numbers`; None for their order in the file."""

    def resolved(self) -> dict[str, Any]:
        """The specification of the compared model. Raises InvalidSpec."""
        return resolve_spec(self.spec)


def proposed(
    sample: Sample, label: str | None, task: str | None
) -> tuple[dict[str, Any], list[str]]:
    """What `infer` proposes for the sample, and its warnings. Raises BadInput.

    Columns that the sample does not have are ignored: peers would not have them.
    """
    proposal = propose(sample, label, None if task is None else _checked_task(task))
    spec = proposal.spec
    spec["columns"]["unknown"] = "ignore"
    return spec, proposal.warnings


def _checked_task(task: str) -> str:
    if task not in TASKS:
        raise BadInput(f"--task must be one of {', '.join(TASKS)}, got {task!r}")
    return task


def declared(
    spec: Mapping[str, Any], sample: Sample, label: str | None, task: str | None
) -> dict[str, Any]:
    """A specification of the user, without undeclared columns if it has types. Raises BadInput.

    label, task  in place of those of the specification; None for these
    """
    if task is not None:
        spec = {**spec, "task": _checked_task(task)}
    columns = spec.get("columns")
    if not isinstance(columns, Mapping):
        raise BadInput("--columns must be a specification with `columns`, as infer prints one")
    columns = dict(columns) if label is None else {**columns, "label": label}
    if columns.get("types"):
        columns.setdefault("unknown", "ignore")
    try:
        resolved = resolve_spec({**spec, "columns": columns})
    except InvalidSpec as error:
        raise BadInput(f"--columns: {error}") from None
    seen, name = seen_in(sample.rows), resolved["columns"]["label"]
    if name not in seen:
        raise BadInput(f"there is no column {name!r}; the columns are {', '.join(seen)}")
    return {**spec, "columns": columns}


def read_rows(
    file: RowFile,
    spec: Mapping[str, Any],
    sample: Sample,
    time: str | None = None,
    on_read: OnRead | None = None,
    frozen: FrozenModel | None = None,
) -> FileRows:
    """Encode the rows of a file into temporary files. Raises BadInput, InvalidSpec."""
    resolved = resolve_spec(spec)
    encoders = _Encoders.of(resolved, time, sample, frozen)
    widths = {name: columns.width for name, (_, columns) in encoders.tables.items()}
    rows = StoredRows(encoders.main.inputs.row_width, encoders.main.dim, widths)
    read = FileRows(dict(spec), rows, None, frozen=frozen)
    if encoders.timed is not None:
        is_number = encoders.timed.feature == encoders.timed.name
        read.times = "numbers" if is_number else "times"
    with closing(rows):
        for piece in _pieces(file):
            _add(read, file.sent_as, piece.content, encoders)
            if on_read is not None:
                on_read(piece.read, rows.appended + read.refused)
        rows.finish()
    _, columns = encoders.tables.get("table", (None, None))
    _, read.frozen_columns = encoders.tables.get("frozen", (None, None))
    read.columns = columns if columns is not None and columns.fits else None
    if read.columns is None:
        read.why_no_table = _why_no_table(resolved, columns)
    check_rows(file.name, read, resolved)
    return read


@dataclass(frozen=True, slots=True)
class _Encoders:
    """Readers of a row: as a learner gets it, as rows of tables, and its time."""

    main: RowSchema
    tables: Mapping[str, tuple[RowSchema, TableColumns]]
    timed: "_Times | None"

    @classmethod
    def of(
        cls,
        resolved: Mapping[str, Any],
        time: str | None,
        sample: Sample,
        frozen: FrozenModel | None,
    ) -> Self:
        """Raises BadInput."""
        timed = None if time is None else _time_schema(resolved, time, sample)
        specs = {"table": table_spec(resolved)}
        if frozen is not None:
            specs["frozen"] = frozen.spec(resolved)
        tables = {}
        for name, spec in specs.items():
            if spec is not None:
                columns = TableColumns(spec)
                if name == "frozen" or columns.width <= MAX_WIDTH:
                    tables[name] = RowSchema(spec), columns
        return cls(RowSchema(dict(resolved)), tables, timed)


def _pieces(file: RowFile) -> Iterator[Any]:
    is_text = file.sent_as.startswith("text/") or "ndjson" in file.sent_as
    for piece in file.pieces():
        if piece.number == 0:
            try:
                check_is_plain(piece.content, is_text)
            except Problem as problem:
                raise BadInput(f"{file.name}: {problem.detail}") from None
        yield piece


def _add(read: FileRows, kind: str, content: bytes, encoders: _Encoders) -> None:
    """Add the rows of a chunk that all readers accept, and count the others as refused."""
    if kind.startswith("text/") or "ndjson" in kind:
        content = content.removeprefix(MARK)
    parsed = _parsed(encoders.main, kind, content, read)
    batch, at, count = as_batch([parsed.rows]), np.asarray(parsed.row_indices), parsed.count
    tabled: dict[str, tuple[Batch, Ints]] = {}
    for name, (schema, columns) in encoders.tables.items():
        parsed = _parsed(schema, kind, content, read)
        columns.learn_names(parsed.names)
        tabled[name] = as_batch([parsed.rows]), np.asarray(parsed.row_indices)
    indices, times = [at, *(one for _, one in tabled.values())], None
    if encoders.timed is not None:
        parsed = _parsed(encoders.timed.schema, kind, content, read)
        times, timed_at = encoders.timed.of(as_batch([parsed.rows])), np.asarray(parsed.row_indices)
        has_time = ~np.isnan(times)
        if not has_time.all() and len(read.reasons) < SHOWN:
            read.reasons.append(f"column {encoders.timed.name!r} is missing")
        times, timed_at = times[has_time], timed_at[has_time]
        indices.append(timed_at)
    shared = _shared(indices)
    read.refused += count - len(shared)
    if times is not None:
        times = times[np.isin(timed_at, shared)]
    tables = {
        name: encoders.tables[name][1].table(_those(rows, at, shared))
        for name, (rows, at) in tabled.items()
    }
    read.rows.append(_those(batch, at, shared), tables, times)


def _those(rows: Batch, at: Ints, shared: Ints) -> Batch:
    """The rows at the indices `shared` among those at `at`."""
    return rows if len(rows) == len(shared) else rows.take(np.isin(at, shared))


def _shared(indices: Sequence[Ints]) -> Ints:
    shared = indices[0]
    for more in indices[1:]:
        if len(more) != len(shared) or not np.array_equal(more, shared):
            shared = np.intersect1d(shared, more)
    return shared


def _parsed(schema: RowSchema, kind: str, content: bytes, read: FileRows) -> ParsedRows:
    """The rows of a chunk. Keeps the first reasons why rows are refused."""
    try:
        parsed = parse_chunk(schema, kind, content, labelled=True)
    except Problem as problem:
        raise BadInput(problem.detail or problem.slug) from None
    for error in parsed.errors[: SHOWN - len(read.reasons)]:
        read.reasons.append(_reason(error))
    return parsed


def _reason(error: RowError) -> str:
    return error.reason if error.line is None else f"line {error.line}: {error.reason}"


@dataclass(frozen=True, slots=True)
class _Times:
    """Reads the column by which rows are sorted."""

    name: str
    schema: RowSchema
    feature: str

    def of(self, batch: Batch) -> Floats:
        """(n,): seconds since 1970, or the numbers of the column; NaN for none."""
        names = self.schema.features({self.feature: 1.0})[0]
        gone = self.schema.features({f"{self.name}=missing": 1.0})[0]
        times = np.zeros(len(batch))
        rows = np.repeat(np.arange(len(batch)), np.diff(batch.indptr))
        chosen, missing = batch.indices == names[0], batch.indices == gone[0]
        times[rows[chosen]] = batch.values[chosen]
        times[rows[missing]] = np.nan
        present = np.zeros(len(batch), np.bool_)
        present[rows[chosen]] = True
        if self.feature != self.name:  # a time is never stored as 0
            times[~present] = np.nan
        return times


def _time_schema(resolved: Mapping[str, Any], name: str, sample: Sample) -> _Times:
    """Raises BadInput if the column is missing in the sample, or holds no times."""
    name = nfc(name)
    seen = seen_in(sample.rows)
    if name not in seen:
        raise BadInput(f"--time: there is no column {name!r}; the columns are {', '.join(seen)}")
    examples = seen[name].examples
    wrong = [one for one in examples if not is_time(one)]
    is_numbers = bool(examples) and all(map(is_number, examples))
    if not examples or (len(wrong) > 0.1 * len(examples) and not is_numbers):
        shown = f", such as {wrong[0]!r}" if wrong else ""
        raise BadInput(f"--time: column {name!r} has neither times nor numbers{shown}")
    is_time_column = len(wrong) <= 0.1 * len(examples)
    kind: Any = {"kind": "time", "parts": ["age"]} if is_time_column else "number"
    declared_columns = resolved["columns"]
    columns = {
        "label": declared_columns["label"],
        "types": {name: kind},
        "missing": declared_columns["missing"],
        "missing_indicator": True,
        "unknown": "ignore",
    }
    if declared_columns["label"] == name:
        raise BadInput(f"--time: column {name!r} is the label")
    spec = {"task": resolved["task"], "columns": columns}
    if resolved.get("labels"):
        spec["labels"] = resolved["labels"]
    feature = f"{name}.age" if is_time_column else name
    return _Times(name, RowSchema(resolve_spec(spec)), feature)


def _why_no_table(resolved: Mapping[str, Any], columns: TableColumns | None) -> str:
    if columns is not None and not columns.fits:
        return "a column has lists"
    if columns is None and table_spec(resolved) is None:
        return "the file has texts, or columns without a declared type"
    return f"the file has more than {MAX_WIDTH:,} columns"


def check_rows(name: str, read: FileRows, resolved: Mapping[str, Any]) -> None:
    """Raise BadInput for rows that cannot be compared."""
    rows = read.rows
    if not len(rows):
        why = f": {read.reasons[0]}" if read.reasons else ""
        raise BadInput(f"{name} has no rows that can be compared{why}")
    if len(rows) < MIN_ROWS:
        raise BadInput(f"{name} has {plural(len(rows), 'row')}; a comparison needs {MIN_ROWS}")
    labels = rows.labels(0, len(rows))
    if labels.min() == labels.max():
        what = "number" if resolved["task"] == "regression" else "class"
        raise BadInput(f"{name}: all {len(rows):,} labels are one {what}; nothing is to be learned")
